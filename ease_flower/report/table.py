"""The main table: before, unlearned, retrained, and the gap, with sizes and standard errors."""

from collections.abc import Mapping
from typing import Any

# key in metrics.json, label, digits, key of its n and gallery
FIGURES = (
    ("forget_r1", "forget R@1, %", 1, "forget"),
    ("retain_r1", "retain R@1, %", 1, "retain"),
    ("test_r1", "test R@1, %", 1, "test"),
    ("membership_auc", "membership AUC", 3, ""),
)
HEADER = ["figure", "before", "unlearned", "retrain", "gap to retrain", "n", "gallery"]


def summary_table(metrics: Mapping[str, Any]) -> list[list[str]]:
    """Write ``metrics.json`` as rows of text, header first; ``-`` stands for "not measured".

    Examples
    --------
    >>> side = {"forget_r1": 50.0, "retain_r1": 60.0, "test_r1": 40.0,
    ...         "membership_auc": 0.7, "membership_auc_se": 0.02}
    >>> rows = summary_table({"before": side, "unlearned": side, "retrain": None, "gap": None,
    ...                       "n": {"forget": 9, "holdout": 7}, "gallery": {"forget": 30}})
    >>> rows[1]
    ['forget R@1, %', '50.0', '50.0', '-', '-', '9', '30']
    >>> rows[4]
    ['membership AUC', '0.700 ± 0.020', '0.700 ± 0.020', '-', '-', '9 + 7', '-']
    """
    rows = [list(HEADER)]
    for key, label, digits, part in FIGURES:
        cells = [_cell(metrics, side, key, digits) for side in ("before", "unlearned", "retrain")]
        gap = (metrics.get("gap") or {}).get(key)
        cells.append("-" if gap is None else f"{gap:+.{digits}f}")
        n, gallery = metrics.get("n") or {}, metrics.get("gallery") or {}
        if part:
            cells += [str(n.get(part, "-")), str(gallery.get(part, "-"))]
        else:
            cells += [f"{n.get('forget', '-')} + {n.get('holdout', '-')}", "-"]
        rows.append([label, *cells])
    return rows


def _cell(metrics: Mapping[str, Any], side: str, key: str, digits: int) -> str:
    values = metrics.get(side) or {}
    if values.get(key) is None:
        return "-"
    error = values.get(f"{key}_se")
    spread = "" if error is None else f" ± {error:.{digits}f}"
    return f"{values[key]:.{digits}f}{spread}"
