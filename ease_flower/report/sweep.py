"""A chart of figures over the values of one setting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10
from statistics import mean, stdev

from ease_flower.report.charts import LEFT, RIGHT, WIDTH, line, svg, text

HEIGHT, TOP = 230, 14


@dataclass(frozen=True)
class Point:
    """One value of the setting: its label, and each series' values, one a seed."""

    label: str
    series: Mapping[str, Sequence[float]]


def sweep_chart(points: Sequence[Point], log: bool = False) -> str:
    """Draw mean and standard deviation of each series, the values evenly spaced.

    Parameters
    ----------
    log : bool
        Draw powers of ten; all values are above 0 then.
    """
    scaled = [
        (p.label, {name: [log10(v) if log else v for v in vs] for name, vs in p.series.items()})
        for p in points
    ]
    shown = [v for _, series in scaled for vs in series.values() for v in vs]
    if not shown:
        return ""
    low, high = _range(shown, log)
    bottom, span = HEIGHT - 40, WIDTH - RIGHT - 150 - LEFT

    def y(value: float) -> float:
        return bottom - (bottom - TOP) * (min(max(value, low), high) - low) / (high - low)

    parts = []
    for i in range(5):
        tick = low + (high - low) * i / 4
        parts.append(line(LEFT, y(tick), LEFT + span, y(tick), "grid"))
        parts.append(text(LEFT - 8, y(tick) + 4, f"{10**tick if log else tick:.2g}", "end"))
    if not log:
        parts.append(line(LEFT, y(0.0), LEFT + span, y(0.0), "link"))
    xs = [LEFT + span * (i + 0.5) / len(scaled) for i in range(len(scaled))]
    for x, (label, _) in zip(xs, scaled, strict=True):
        parts.append(text(x, bottom + 20, label, "middle"))
    for n, name in enumerate(dict.fromkeys(name for _, series in scaled for name in series)):
        marks = []
        for x, (_, series) in zip(xs, scaled, strict=True):
            values = series.get(name)
            if values:
                centre, half = mean(values), stdev(values) if len(values) > 1 else 0.0
                shifted = x + 5 * n
                marks.append((shifted, y(centre)))
                parts.append(line(shifted, y(centre - half), shifted, y(centre + half), f"c{n}"))
        path = " ".join(f"{x:.1f},{v:.1f}" for x, v in marks)
        parts.append(f'<polyline class="c{n}" points="{path}"/>')
        parts += [f'<circle class="f{n}" cx="{x:.1f}" cy="{v:.1f}" r="4"/>' for x, v in marks]
        if marks:
            parts.append(text(LEFT + span + 12, TOP + 14 + 22 * n, f"● {name}", "start", f"f{n}"))
    return svg(HEIGHT, parts, "Figures over a setting")


def _range(values: Sequence[float], log: bool) -> tuple[float, float]:
    """Return the ends of the axis: around 0, or whole powers of ten."""
    if log:
        low, high = float(int(min(values) // 1)), float(-int(-max(values) // 1))
        return low, high if high > low else low + 1.0
    reach = max(1.0, *(abs(v) for v in values))
    return -reach, reach
