"""Several seeds in one table: mean and standard deviation of every figure."""

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from ease_flower.report.table import FIGURES

SIDES = ("before", "unlearned", "retrain", "gap", "cost")


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Take mean and standard deviation over seeds, figure by figure.

    Parameters
    ----------
    rows : sequence of dict
        One ``metrics.json`` a seed.

    Returns
    -------
    dict
        As ``metrics.json``, each figure replaced by ``{"mean", "sd", "values"}``; sd is the
        sample standard deviation (n - 1), None for one seed. A figure that any seed lacks is
        None.

    Examples
    --------
    >>> rows = [{"seed": s, "before": {"forget_r1": r}} for s, r in ((0, 80.0), (1, 84.0))]
    >>> summarise(rows)["before"]["forget_r1"]
    {'mean': 82.0, 'sd': 2.8284271247461903, 'values': [80.0, 84.0]}
    """
    out: dict[str, Any] = {"seeds": [row["seed"] for row in rows], "num_seeds": len(rows)}
    for side in SIDES:
        sides = [row.get(side) for row in rows]
        if any(not isinstance(values, dict) for values in sides):
            out[side] = None
            continue
        out[side] = {
            key: _spread([values.get(key) for values in sides if values]) for key in sides[0] or {}
        }
    for key in ("gallery", "n", "backbone", "method", "scope", "forgotten"):
        out[key] = rows[0].get(key)
    return out


def _spread(values: list[float | None]) -> dict[str, Any] | None:
    known = [float(v) for v in values if v is not None]
    if len(known) < len(values):
        return None
    return {"mean": mean(known), "sd": stdev(known) if len(known) > 1 else None, "values": known}


def summary_rows(summary: dict[str, Any]) -> list[list[str]]:
    """Write a summary as a table of text: header, then one row a figure."""
    rows = [["figure", "before", "unlearned", "retrain", "gap to retrain"]]
    for key, label, digits, _ in FIGURES:
        cells = [_cell(summary, side, key, digits) for side in SIDES[:4]]
        rows.append([label, *cells])
    return rows


def _cell(summary: dict[str, Any], side: str, key: str, digits: int) -> str:
    spread = (summary.get(side) or {}).get(key)
    if spread is None:
        return "-"
    sign = "+" if side == "gap" else ""
    text = f"{spread['mean']:{sign}.{digits}f}"
    return text if spread["sd"] is None else f"{text} +- {spread['sd']:.{digits}f}"
