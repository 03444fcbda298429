"""From a finished run to metrics.json, report.html and the adapter to use."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ease_flower.config import Config
from ease_flower.model.adapters import AdapterSpace
from ease_flower.model.export import export_adapter
from ease_flower.model.towers import DualEncoder
from ease_flower.report import ReportData, render_report
from ease_flower.report.pictures import retrieval_pictures
from ease_flower.state import Store
from ease_flower.state.files import write_bytes, write_json
from ease_flower.state.tracks import Tracks

KEYS = ("forget_r1", "retain_r1", "test_r1", "membership_auc", "membership_auc_se")
MORE = tuple(f"{part}_r{k}" for part in ("forget", "retain", "test") for k in (5, 10))


def write_reports(
    config: Config,
    store: Store,
    encoder: DualEncoder,
    space: AdapterSpace,
    measured: dict[str, dict[str, Any]],
    curve: list[dict[str, Any]],
    tracks: Tracks,
) -> Path:
    """Write everything below ``reports/``; return the HTML report's path."""
    folder = store.root / "reports"
    metrics = metrics_json(config, store, measured, tracks)
    metrics["drift"] = drift_figures(config, store, curve, tracks)
    keys = model_keys(store, tracks)
    models = {name: store.model(*key) for name, key in keys.items()}
    simulated = int(store.manifest.get("num-simulated", 0))
    pictures, why_none = retrieval_pictures(config, encoder, space, models, simulated)
    data = ReportData(
        metrics=metrics,
        curve=[{k: p.get(k) for k in ("round", "drift", *KEYS)} for p in curve],
        angles=store.manifest.get("angles", []),
        calibration=store.manifest.get("calibration", {}),
        pictures=pictures,
        pictures_note=why_none,
        settings=config.to_run_config(),
        costs=cost_rows(store),
        notes=[*store.manifest.get("notes", []), *_notes(config, store, metrics)],
        model_hashes={name: store.model_hash(*key) for name, key in keys.items()},
        created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    write_json(folder / "metrics.json", metrics)
    write_json(folder / "report.json", data.to_json())
    export_adapter(folder / "adapter", encoder, config, space.unflatten(models["unlearned"]))
    write_bytes(folder / "report.html", render_report(data).encode())
    return folder / "report.html"


def drift_figures(
    config: Config, store: Store, curve: list[dict[str, Any]], tracks: Tracks
) -> dict[str, float | None]:
    """Say how far models went along U_mu after theta_u, in recovery and later; the largest each.

    Returns
    -------
    dict
        ``global``: averages, after projection. ``local``: what clients sent back. ``locked``: the
        same along U_mu as clients hold it, in 4 bits. ``bound`` of that: push / alpha.
    """
    rounds = list(store.manifest.get("drift", {}).get(tracks.recover, {}).values())

    def most(key: str) -> float | None:
        found = [row[key] for row in rounds if key in row]
        return max(found) if found else None

    push = most("push")
    return {
        "global": max(float(point["drift"]) for point in curve),
        "local": most("drift"),
        "locked": most("locked"),
        "bound": push / config.lock_alpha if push is not None and config.lock_alpha else None,
    }


def model_keys(store: Store, tracks: Tracks) -> dict[str, tuple[str, int]]:
    """Return which track and round each reported model is."""
    keys = {"before": tracks.before(store), "unlearned": tracks.after(store)}
    if store.has(tracks.retrain):
        keys["retrain"] = tracks.retrain, store.rounds_done(tracks.retrain)
    return keys


def metrics_json(
    config: Config, store: Store, measured: dict[str, dict[str, Any]], tracks: Tracks
) -> dict[str, Any]:
    """Put the figures into the documented shape; the gap is unlearned minus retrain."""
    figures = {name: {key: row[key] for key in (*KEYS, *MORE)} for name, row in measured.items()}
    unlearned, retrain = figures["unlearned"], figures.get("retrain")
    return {
        "before": figures["before"],
        "unlearned": unlearned,
        "retrain": retrain,
        "gap": None
        if retrain is None
        else {key: _minus(unlearned[key], retrain[key]) for key in (*KEYS, *MORE)},
        "cost": cost_ratios(store, tracks),
        "gallery": measured["unlearned"]["gallery"],
        "n": measured["unlearned"]["n"],
        "seed": config.seed,
        "backbone": config.backbone,
        "method": config.method,
        "scope": config.scope,
        "forgotten": config.forget,
    }


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def cost_ratios(store: Store, tracks: Tracks) -> dict[str, float | None]:
    """Divide what unlearning cost by what retraining cost; None without a reference."""
    costs = store.manifest["costs"]
    reference = costs.get(tracks.retrain, {})
    parts = [costs.get(phase, {}) for phase in (tracks.unlearn, tracks.recover)]

    def ratio(*keys: str) -> float | None:
        whole = sum(reference.get(key, 0) for key in keys)
        return sum(part.get(k, 0) for part in parts for k in keys) / whole if whole else None

    return {
        "bytes_ratio": ratio("bytes_up", "bytes_down"),
        "client_time_ratio": ratio("client_seconds"),
    }


def cost_rows(store: Store) -> list[dict[str, Any]]:
    """Return the account of each phase, for the report."""
    dropped = store.manifest["dropped"]
    return [
        {
            "phase": phase,
            "rounds": int(costs.get("rounds", 0)),
            "mb_up": costs.get("bytes_up", 0) / 1e6,
            "mb_down": costs.get("bytes_down", 0) / 1e6,
            "client_seconds": costs.get("client_seconds", 0.0),
            "dropped": sum(entry["track"] == phase for entry in dropped),
        }
        for phase, costs in store.manifest["costs"].items()
    ]


def _notes(config: Config, store: Store, metrics: dict[str, Any]) -> list[str]:
    found = store.manifest["calibration"]
    notes = [
        f"lambda = {found['strength']:.2f}: {found['how']}. delta = {config.delta:g} was fixed "
        "beforehand.",
        "Client seconds count training alone; the frozen part of the backbone is computed once a "
        "pair, before the first round, and is in neither side of the ratio.",
    ]
    dropped = store.manifest["dropped"]
    notes += [
        f"Dropped: {d['client']}, {d['track']} round {d['round']}: {d['reason']}" for d in dropped
    ]
    if metrics["unlearned"]["forget_r1"] is None:
        notes.append(
            f"{config.forget} was not measured: it is gone, or evaluate-forgotten is false."
        )
    return notes
