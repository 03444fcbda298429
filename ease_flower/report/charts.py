"""Charts as SVG text; colours are classes, so that the page's light and dark themes hold."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH, LEFT, RIGHT = 640, 130, 24
SIDES = (("before", "before"), ("unlearned", "unlearned"), ("retrain", "retrain"))


def gap_chart(metrics: Mapping[str, Any]) -> str:
    """Draw before, unlearned and retrain of each figure on one line; their distance is the gap."""
    rows = (
        ("forget_r1", "forget R@1", 1.0),
        ("retain_r1", "retain R@1", 1.0),
        ("test_r1", "test R@1", 1.0),
        ("membership_auc", "100 AUC", 100.0),
    )
    top, step = 16, 38
    bottom = top + step * len(rows)
    parts = [_axis(bottom, 0, 100, "%")]
    for i, (key, label, scale) in enumerate(rows):
        y = top + step * i + step / 2
        found = {
            side: metrics[side][key] * scale
            for side, _ in SIDES
            if metrics.get(side) and metrics[side].get(key) is not None
        }
        parts.append(text(LEFT - 10, y + 4, label, "end"))
        if not found:
            parts.append(text(LEFT + 8, y + 4, "not measured", "start"))
            continue
        xs = {side: _x(value, 0, 100) for side, value in found.items()}
        parts.append(line(min(xs.values()), y, max(xs.values()), y, "link"))
        for side, x in xs.items():
            title = f"{label}, {side}: {found[side]:.1f}"
            parts.append(_mark(side, x, y, title))
    return svg(bottom + 34, parts, "Before, unlearned and retrained model on every figure")


def curve_chart(
    curve: Sequence[Mapping[str, Any]],
    metrics: Mapping[str, Any],
    keys: Sequence[tuple[str, str]],
    high: float,
    title: str,
) -> str:
    """Draw figures over recovery rounds; dashed: the retrained model, dotted: before.

    Parameters
    ----------
    curve : sequence of dict
        Points with ``round`` and the figures.
    keys : sequence of (key, label)
    high : float
        Top of the vertical axis; it starts at 0.
    """
    height, top = 230, 14
    bottom = height - 40
    last = max((int(p["round"]) for p in curve), default=0) or 1
    low_x, high_x = LEFT, WIDTH - RIGHT - 90

    def x(rnd: float) -> float:
        return low_x + (high_x - low_x) * rnd / last

    def y(value: float) -> float:
        return bottom - (bottom - top) * min(max(value / high, 0.0), 1.0)

    parts = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(line(low_x, y(high * tick), high_x, y(high * tick), "grid"))
        parts.append(text(low_x - 8, y(high * tick) + 4, f"{high * tick:.3g}", "end"))
    for rnd in range(0, last + 1, max(1, last // 8)):
        name = "excised" if rnd == 0 else f"round {rnd}"
        parts.append(text(x(rnd), bottom + 20, name, "middle"))
    for n, (key, label) in enumerate(keys):
        points = [(x(p["round"]), y(p[key])) for p in curve if p.get(key) is not None]
        for side, kind in (("retrain", "dash"), ("before", "dot")):
            value = (metrics.get(side) or {}).get(key)
            if value is not None:
                parts.append(line(low_x, y(value), high_x, y(value), f"c{n} {kind}"))
        if not points:
            continue
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        parts.append(f'<polyline class="c{n}" points="{path}"/>')
        parts += [f'<circle class="f{n}" cx="{px:.1f}" cy="{py:.1f}" r="4"/>' for px, py in points]
        parts.append(text(points[-1][0] + 10, points[-1][1] + 4, label, "start"))
    return svg(height, parts, title)


def calibration_chart(curve: Sequence[Mapping[str, float]], chosen: float) -> str:
    """Draw the reference attack's AUC, with its standard error, over lambda.

    Parameters
    ----------
    curve : sequence of dict
        ``strength``, ``auc``, ``se``.
    chosen : float
        The lambda that was taken: an upright line.
    """
    height, top = 230, 14
    bottom = height - 40
    span = WIDTH - RIGHT - LEFT

    def y(value: float) -> float:
        return bottom - (bottom - top) * min(max((value - 0.3) / 0.7, 0.0), 1.0)

    parts = [line(LEFT, y(0.5), WIDTH - RIGHT, y(0.5), "dash c1")]
    for tick in (0.3, 0.5, 0.75, 1.0):
        parts.append(line(LEFT, y(tick), WIDTH - RIGHT, y(tick), "grid"))
        parts.append(text(LEFT - 8, y(tick) + 4, f"{tick:g}", "end"))
    taken = LEFT + span * chosen
    parts.append(line(taken, top, taken, bottom, "dash c0"))
    for point in curve:
        x, auc, error = LEFT + span * point["strength"], point["auc"], point["se"]
        title = f"lambda {point['strength']:.2f}: AUC {auc:.3f} ± {error:.3f}"
        parts.append(line(x, y(auc - error), x, y(auc + error), "c0"))
        parts.append(
            f'<circle class="removed" cx="{x:.1f}" cy="{y(auc):.1f}" r="5">'
            f"<title>{escape(title)}</title></circle>"
        )
        parts.append(text(x, bottom + 18, f"{point['strength']:g}", "middle"))
    parts.append(text(LEFT + span / 2, bottom + 36, "lambda", "middle"))
    return svg(height, parts, "AUC of the reference attack over lambda")


def angle_chart(angles: Sequence[Mapping[str, Any]], delta: float) -> str:
    """Draw the cosine of each direction of the forget side to what is retained.

    Left: shared with the others, kept. Below the line: its own, removed.
    """
    points = sorted(
        (
            (float(cosine), bool(gone), str(block["block"]))
            for block in angles
            for cosine, gone in zip(block["cosines"], block["removed"], strict=True)
        ),
        reverse=True,
    )
    height, top = 230, 14
    bottom = height - 40

    def y(value: float) -> float:
        return bottom - (bottom - top) * min(max(value, 0.0), 1.0)

    parts = []
    for tick in (0.0, 0.5, 1.0):
        parts.append(line(LEFT, y(tick), WIDTH - RIGHT, y(tick), "grid"))
        parts.append(text(LEFT - 8, y(tick) + 4, f"{tick:g}", "end"))
    parts.append(line(LEFT, y(delta), WIDTH - RIGHT, y(delta), "dash c0"))
    parts.append(text(WIDTH - RIGHT, y(delta) - 6, f"delta = {delta:g}", "end"))
    span = WIDTH - RIGHT - LEFT
    for i, (cosine, gone, block) in enumerate(points):
        px = LEFT + span * (i + 0.5) / len(points)
        kind = "removed" if gone else "kept"
        title = escape(f"{block}: cosine {cosine:.3f}, {kind}")
        parts.append(
            f'<circle class="{kind}" cx="{px:.1f}" cy="{y(cosine):.1f}" r="5">'
            f"<title>{title}</title></circle>"
        )
    parts.append(
        text(LEFT + span / 2, bottom + 22, "principal directions of the forget side", "middle")
    )
    return svg(height, parts, "Cosine of each principal direction to the retain span")


def collateral_chart(angles: Sequence[Mapping[str, Any]], delta: float) -> str:
    """Draw what removal costs the retained updates over delta, and its bound, which is delta."""
    height, top = 230, 14
    bottom = height - 40
    span = WIDTH - RIGHT - LEFT

    def y(value: float) -> float:
        return bottom - (bottom - top) * min(max(value, 0.0), 1.0)

    parts = []
    for tick in (0.0, 0.5, 1.0):
        parts.append(line(LEFT, y(tick), WIDTH - RIGHT, y(tick), "grid"))
        parts.append(text(LEFT - 8, y(tick) + 4, f"{tick:g}", "end"))
        parts.append(text(LEFT + span * tick, bottom + 20, f"{tick:g}", "middle"))
    parts.append(line(LEFT, y(0.0), WIDTH - RIGHT, y(1.0), "dash c0"))
    parts.append(text(LEFT + span * 0.8, y(0.8) + 18, "bound: delta", "start"))
    for block in angles:
        for cosine, cost in zip(block["cosines"], block["collateral"], strict=True):
            kind = "removed" if cosine <= delta else "kept"
            tip = escape(f"{block['block']}: delta {cosine:.3f} costs at most {cost:.3f}")
            parts.append(
                f'<circle class="{kind}" cx="{LEFT + span * cosine:.1f}" cy="{y(cost):.1f}" r="5">'
                f"<title>{tip}</title></circle>"
            )
    return svg(height, parts, "Cost of removal to the retained updates over delta")


def svg(height: float, parts: Sequence[str], label: str) -> str:
    """Put parts into a picture that is as wide as the page."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(label)}">'
        + "".join(parts)
        + "</svg>"
    )


def _x(value: float, low: float, high: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (min(max(value, low), high) - low) / (high - low)


def _axis(y: float, low: float, high: float, unit: str) -> str:
    out = ""
    for i in range(5):
        value = low + (high - low) * i / 4
        x = _x(value, low, high)
        out += line(x, 10, x, y, "grid") + text(x, y + 20, f"{value:g} {unit}", "middle")
    return out


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """Draw a line of a class of the style sheet."""
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def text(x: float, y: float, words: str, anchor: str, kind: str = "") -> str:
    """Write words; `anchor` is the end of them that stands at x."""
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _mark(side: str, x: float, y: float, title: str) -> str:
    """Draw a model's mark; the shapes differ as well as the colours."""
    tip = f"<title>{escape(title)}</title>"
    if side == "before":
        return f'<circle class="before" cx="{x:.1f}" cy="{y:.1f}" r="6">{tip}</circle>'
    if side == "retrain":
        return (
            f'<rect class="retrain" x="{x - 6:.1f}" y="{y - 6:.1f}" width="12" height="12">'
            f"{tip}</rect>"
        )
    points = f"{x:.1f},{y - 8:.1f} {x + 8:.1f},{y:.1f} {x:.1f},{y + 8:.1f} {x - 8:.1f},{y:.1f}"
    return f'<polygon class="unlearned" points="{points}">{tip}</polygon>'
