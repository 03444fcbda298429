"""Ablations as a table and a page: what every part does to the gap to retraining."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ease_flower.report.page import html_table
from ease_flower.report.style import STYLE
from ease_flower.report.summary import summarise
from ease_flower.report.sweep import Point, sweep_chart

GAPS = ("forget_r1", "retain_r1", "test_r1", "membership_auc")
COSTS = ("bytes_ratio", "client_time_ratio")
SWEPT = {
    "delta": "delta, the largest cosine to the retain span that is removed",
    "strength": "lambda, the share of the displacement that is removed",
    "replay-every": "rounds from one replayed round to the next",
    "replay-rank": "directions a holder sends",
}
DRIFTS = (("locked", "measured"), ("bound", "bound: push / alpha"))

Row = Mapping[str, Any]


def ablation_table(rows: Sequence[Row]) -> list[list[str]]:
    """Write one line a variant: gaps to retrain, mean and standard deviation over seeds.

    Parameters
    ----------
    rows : sequence of dict
        ``metrics.json`` rows with ``variant`` and ``settings``, as in ``ablation.json``.
    """
    out = [["variant", "forget gap", "retain gap", "test gap", "AUC gap", "bytes %", "time %"]]
    for name, same in _by_variant(rows).items():
        found = summarise([dict(row) for row in same])
        cells = [_cell(found["gap"][key], 3 if "auc" in key else 1) for key in GAPS]
        cells += [
            "-" if (c := found["cost"][k]) is None else f"{100 * c['mean']:.1f}" for k in COSTS
        ]
        out.append([name, *cells])
    return out


def render_ablation(rows: Sequence[Row], settings: Mapping[str, Any]) -> str:
    """Write the page of an ablation; `settings` are those the variants differ from."""
    scopes = dict.fromkeys(str(row["scope"]) for row in rows)
    body = "".join(
        _scope(scope, [r for r in rows if r["scope"] == scope], settings) for scope in scopes
    )
    seeds = sorted({int(row["seed"]) for row in rows})
    lead = (
        f"Gaps are unlearned minus retrained, in points of R@1 and in AUC; mean ± standard "
        f"deviation over seeds {', '.join(map(str, seeds))}. Costs are shares of retraining's."
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Ablation</title><style>{STYLE}</style></head><body>"
        f"<h1>Ablation of EASE, {escape(str(settings['backbone']))} backbone</h1>"
        f'<p class="lead">{lead}</p>{body}</body></html>\n'
    )


def _scope(scope: str, rows: Sequence[Row], settings: Mapping[str, Any]) -> str:
    charts = [
        f'<h2>{escape(scope)}</h2><div class="scroll">{html_table(ablation_table(rows))}</div>'
    ]
    for key, label in SWEPT.items():
        found = sweep(rows, key, settings)
        if len(found) > 1:
            points = [
                Point(
                    f"{value:g}",
                    {"forget": gaps(same, "forget_r1"), "retain": gaps(same, "retain_r1")},
                )
                for value, same in found.items()
            ]
            charts.append(_figure(sweep_chart(points), f"Gap in R@1 over {label}"))
    alphas = sweep(rows, "lock-alpha", settings)
    if len(alphas) > 1:
        points = [
            Point(f"{value:g}", {label: drifts(same, key) for key, label in DRIFTS})
            for value, same in alphas.items()
        ]
        text = "Largest drift of a client along U_mu in a round, over alpha (logarithmic)"
        charts.append(_figure(sweep_chart(points, log=True), text))
    return "".join(charts)


def sweep(rows: Sequence[Row], key: str, settings: Mapping[str, Any]) -> dict[float, list[Row]]:
    """Group the rows in which nothing but one setting was turned, by its value, ascending.

    Examples
    --------
    >>> full = {"scope": "client", "settings": {"scope": "client"}}
    >>> low = {"scope": "client", "settings": {"scope": "client", "delta": 0.1}}
    >>> sorted(sweep([full, low], "delta", {"delta": 0.3, "scope": "client"}))
    [0.1, 0.3]
    """
    out: dict[float, list[Row]] = {}
    for row in rows:
        turned = set(row["settings"]) - {"scope", "forget"}
        if turned <= {key}:
            out.setdefault(float(row["settings"].get(key, settings[key])), []).append(row)
    return dict(sorted(out.items()))


def gaps(rows: Sequence[Row], key: str) -> list[float]:
    """Return the gap of one figure, a value a seed; those that were not measured are left out."""
    return [row["gap"][key] for row in rows if row["gap"] and row["gap"][key] is not None]


def drifts(rows: Sequence[Row], key: str) -> list[float]:
    """Return one figure of drift, a value a seed; those that were not measured are left out."""
    return [row["drift"][key] for row in rows if row.get("drift", {}).get(key) is not None]


def _by_variant(rows: Sequence[Row]) -> dict[str, list[Row]]:
    out: dict[str, list[Row]] = {}
    for row in rows:
        out.setdefault(str(row["variant"]), []).append(row)
    return out


def _figure(chart: str, caption: str) -> str:
    return f"<figure>{chart}<figcaption>{escape(caption)}</figcaption></figure>"


def _cell(spread: Mapping[str, Any] | None, digits: int) -> str:
    if spread is None:
        return "-"
    text = f"{spread['mean']:+.{digits}f}"
    return text if spread["sd"] is None else f"{text} ± {spread['sd']:.{digits}f}"
