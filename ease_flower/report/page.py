"""The report: one HTML file without scripts or anything loaded from elsewhere."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from ease_flower.report.charts import (
    angle_chart,
    calibration_chart,
    collateral_chart,
    curve_chart,
    gap_chart,
)
from ease_flower.report.data import ReportData
from ease_flower.report.style import LEGEND, STYLE
from ease_flower.report.table import summary_table

KINDS = {
    "forget": "Captions of forgotten pairs (those whose image the model found before, and "
    "the retrained model ranks lowest)",
    "retain": "Captions of pairs that are retained (evenly spaced)",
    "test": "Public test captions (evenly spaced)",
}
MODELS = (("before", "before"), ("unlearned", "unlearned"), ("retrain", "retrained"))


def render_report(data: ReportData) -> str:
    """Write the page.

    Returns
    -------
    str
        A whole HTML document; every text in it is escaped.
    """
    name = escape(str(data.metrics.get("forgotten", "")))
    what = {"class": "class ", "sample": "samples of "}.get(str(data.metrics.get("scope")), "")
    title = f"{escape(str(data.metrics.get('method', '')).upper())}: forgetting {what}{name}"
    body = "".join(
        [
            f"<h1>{title}</h1>",
            f'<p class="lead">{escape(headline(data.metrics))}</p>',
            f'<div class="scroll">{html_table(summary_table(data.metrics))}</div>',
            _how_to_read(),
            f"<h2>Gap to retraining</h2>{LEGEND}<figure>{gap_chart(data.metrics)}</figure>",
            _cost(data),
            _curve(data),
            _angles(data),
            _calibration(data),
            _pictures(data),
            _notes(data.notes),
            _settings(data),
            f'<p class="soft">Made {escape(data.created)}.</p>',
        ]
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body>{body}</body></html>\n"
    )


def headline(metrics: Mapping[str, Any]) -> str:
    """Say in a sentence what the table says.

    Examples
    --------
    >>> headline({"before": {"forget_r1": 80.0}, "unlearned": {"forget_r1": 52.0},
    ...           "retrain": {"forget_r1": 50.0}})
    'Retrieval of the forgotten pairs went from 80.0 to 52.0 %;
    a model that never saw them has 50.0 %.'
    """
    before, after = (metrics[side].get("forget_r1") for side in ("before", "unlearned"))
    retrain = (metrics.get("retrain") or {}).get("forget_r1")
    if before is None or after is None:
        return "The forgotten client could not be asked: only those who stay were measured."
    text = f"Retrieval of the forgotten pairs went from {before:.1f} to {after:.1f} %"
    if retrain is None:
        return f"{text}; no reference was trained, so whether that is enough is not known."
    return f"{text}; a model that never saw them has {retrain:.1f} %."


def _how_to_read() -> str:
    return (
        '<p class="soft">R@1: share of queries whose first hit is right, mean of both directions; '
        "the gallery is what was searched. Ties count half. Forget: what was asked to be "
        "forgotten; retain: everything else clients trained on; test: public pairs nobody trained "
        "on. Membership AUC: "
        "whether the forgotten pairs can be told from the same client's held-out pairs by their "
        "cosine, ± its standard error over pairs. The aim is retrain's value, above or "
        "below: forgetting more than the retrained model marks the pairs just as well. "
        "These are tests, not a proof.</p>"
    )


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """Write rows of text as a table, header first; every cell is escaped."""

    def line(cells: Iterable[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(str(c))}</{tag}>" for c in cells) + "</tr>"

    return f"<table>{line(rows[0], 'th')}{''.join(line(row, 'td') for row in rows[1:])}</table>"


def _cost(data: ReportData) -> str:
    ratios = data.metrics.get("cost") or {}
    told = [
        f"{100 * ratios[key]:.1f} % of retraining's {label}"
        for key, label in (("bytes_ratio", "bytes"), ("client_time_ratio", "client time"))
        if ratios.get(key) is not None
    ]
    header = ["phase", "rounds", "MB up", "MB down", "client seconds", "dropped replies"]
    rows = [
        [
            str(row["phase"]),
            str(row["rounds"]),
            f"{row['mb_up']:.2f}",
            f"{row['mb_down']:.2f}",
            f"{row['client_seconds']:.1f}",
            str(row["dropped"]),
        ]
        for row in data.costs
    ]
    lead = f"<p>Unlearning took {' and '.join(told)}.</p>" if told else ""
    return f'<h2>Cost</h2>{lead}<div class="scroll">{html_table([header, *rows])}</div>'


def _curve(data: ReportData) -> str:
    keys = [("forget_r1", "forget"), ("retain_r1", "retain")]
    shown = [*data.curve, data.metrics["before"], data.metrics.get("retrain") or {}]
    most = max((float(row.get(key) or 0.0) for row in shown for key, _ in keys), default=0.0)
    recalls = curve_chart(
        data.curve,
        data.metrics,
        keys,
        next(top for top in (10.0, 20.0, 40.0, 100.0) if top >= most),
        "Forget and retain R@1 over recovery rounds",
    )
    auc = curve_chart(
        data.curve, data.metrics, [("membership_auc", "AUC")], 1.0, "Membership AUC over rounds"
    )
    return (
        "<h2>Does it come back?</h2>"
        "<p>What later rounds by those who stay do to the forgotten pairs. Dashed: retrained; "
        "dotted: before.</p>"
        f"<figure>{recalls}<figcaption>R@1, %</figcaption></figure>"
        f"<figure>{auc}<figcaption>Membership AUC</figcaption></figure>"
        f"{_drift(data)}"
    )


def _drift(data: ReportData) -> str:
    drift = data.metrics.get("drift") or {}
    told = [
        f"{label} {drift[key]:.2e}"
        for key, label in (
            ("local", "local models"),
            ("locked", "the same along U_mu as clients hold it, in 4 bits"),
            ("bound", "what alpha bounds that to"),
            ("global", "averages, after projection"),
        )
        if drift.get(key) is not None
    ]
    if not told:
        return ""
    return f'<p class="soft">Moved along the removed directions, at most: {"; ".join(told)}.</p>'


def _angles(data: ReportData) -> str:
    if not data.angles:
        return ""
    total = sum(len(block["removed"]) for block in data.angles)
    gone = sum(sum(block["removed"]) for block in data.angles)
    delta = float(data.settings["delta"])
    chart = angle_chart(data.angles, delta)
    return (
        "<h2>What was its own</h2>"
        f"<p>{gone} of {total} principal directions of what the forget pairs added were removed "
        "(filled): their cosine to everything that is retained is at most delta. The rest is "
        "shared knowledge and stays.</p>"
        f"<figure>{chart}<figcaption>Cosine to the retain span</figcaption></figure>"
        "<p>What removal costs the others: the largest share of any retained update that lies "
        "in the directions a delta would remove; of what lies in the retain span, at most "
        "delta.</p>"
        f"<figure>{collateral_chart(data.angles, delta)}<figcaption>Largest share of a retained "
        "update, over delta</figcaption></figure>"
    )


def _calibration(data: ReportData) -> str:
    curve = data.calibration.get("curve")
    if not curve:
        return ""
    chosen = float(data.calibration["strength"])
    return (
        "<h2>How much was taken out</h2>"
        "<p>Holders attacked their own forget pairs: can they be told from held-out pairs by how "
        "much their cosine grew since the initial adapters? The upright line: lambda "
        f"{chosen:.2f}, where that AUC falls to 0.5, or 1 if it never does.</p>"
        f"<figure>{calibration_chart(curve, chosen)}<figcaption>AUC of the reference attack after "
        "excision</figcaption></figure>"
    )


def _pictures(data: ReportData) -> str:
    out = ["<h2>What a caption finds</h2>"]
    if data.pictures_note:
        out.append(f'<p class="soft">{escape(data.pictures_note)}</p>')
    for kind, title in KINDS.items():
        rows = [row for row in data.pictures if row["kind"] == kind]
        if rows:
            out.append(f'<p class="soft">{title}. The right image has a frame.</p>')
            out += [_query(row) for row in rows]
    return "".join(out)


def _query(row: Mapping[str, Any]) -> str:
    lines = []
    for key, label in MODELS:
        if key in row:
            shots = "".join(
                f'<img src="{escape(shot["src"])}" '
                + ('class="hit" alt="right image">' if shot["hit"] else 'alt="other image">')
                for shot in row[key]
            )
            lines.append(f'<div class="shots"><span>{label}</span>{shots}</div>')
    return (
        f'<div class="query"><img src="{escape(row["truth"])}" alt="the image it belongs to">'
        f"<span>{escape(row['query'])}</span></div>{''.join(lines)}"
    )


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    return f"<h2>Notes</h2><ul>{''.join(f'<li>{escape(n)}</li>' for n in notes)}</ul>"


def _settings(data: ReportData) -> str:
    rows = [["key", "value"], *([k, str(v)] for k, v in sorted(data.settings.items()))]
    hashes = [
        ["model", "SHA-256 of its adapters"],
        *([k, v] for k, v in sorted(data.model_hashes.items())),
    ]
    return (
        f"<details><summary>Settings and model hashes</summary>{html_table(rows)}"
        f"<code>{html_table(hashes)}</code></details>"
    )
