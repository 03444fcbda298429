"""``ease-flower ablate``: switch every part off or turn it, and see what that does.

All variants of a seed share one trained model, and those of a request one retrained model; one
process a seed, as many at a time as there are CPUs.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ease_flower.cli.bundle import make_bundle
from ease_flower.cli.summary import summarise
from ease_flower.config import Config, Scalar
from ease_flower.errors import UserError
from ease_flower.state.files import read_json, write_json

Settings = Mapping[str, Scalar]
REQUESTS: dict[str, Settings] = {
    "client": {"scope": "client", "forget": "site-1"},
    "class": {"scope": "class", "forget": "star"},
    "sample": {"scope": "sample", "forget": "site-1,site-3"},
}
LATER = 20  # rounds of training after recovery, for "does it come back?"
PARTS: dict[str, Settings] = {
    "full": {},
    "no GSD (all directions)": {"delta": 1.0},
    "no lock": {"lock": "none"},
    "no projection": {"project": False},
    "no lock, no projection": {"lock": "none", "project": False},
    "penalty lock": {"lock": "penalty"},
    "delta 0.2": {"delta": 0.2},
    "delta 0.6": {"delta": 0.6},
    "pairwise retain span": {"retain-span": "pairwise"},
    "a layer at a time": {"granularity": "layer"},
    "no recovery": {"recover-rounds": 0},
}
CLIENT_PARTS: dict[str, Settings] = {
    "lambda 0 (recovery alone)": {"strength": 0.0},
    "lambda 0.5": {"strength": 0.5},
    "leaver online": {"forget-client-online": True},
    "leaver online, no calibration": {"forget-client-online": True, "calibrate": False},
    "BKE alone": {"forget-client-online": True, "strength": 0.0, "calibrate": False},
    "BKE alone, image branch": {
        "forget-client-online": True,
        "strength": 0.0,
        "calibrate": False,
        "excise-branches": "image",
    },
    "BKE alone, text branch": {
        "forget-client-online": True,
        "strength": 0.0,
        "calibrate": False,
        "excise-branches": "text",
    },
    "alpha 1": {"lock-alpha": 1.0, "project": False},
    "alpha 100": {"lock-alpha": 100.0, "project": False},
    "re-paired": {"pairing": "re-paired"},
}
HOLDER_PARTS: dict[str, Settings] = {
    "no calibration": {"calibrate": False},
    "no BKE": {"excise-steps": 0},
    "pseudo-updates": {"attribution": "pseudo"},
    "replay every round": {"replay-every": 1},
    "replay every 8th": {"replay-every": 8},
    "replay rank 1": {"replay-rank": 1},
    "replay rank 16": {"replay-rank": 16},
}


def variants(scopes: Sequence[str], config: Config) -> dict[str, dict[str, Scalar]]:
    """List the variants by name, ``scope/part``, with the settings that differ from `config`."""
    later = {"later-rounds": LATER}
    out: dict[str, dict[str, Scalar]] = {}
    for scope in scopes:
        parts = PARTS | (CLIENT_PARTS if scope == "client" else HOLDER_PARTS)
        parts |= {f"{LATER} rounds later": later}
        parts |= {
            f"{LATER} rounds later, no lock, no projection": {
                **later,
                "lock": "none",
                "project": False,
            }
        }
        out |= {f"{scope}/{name}": {**REQUESTS[scope], **part} for name, part in parts.items()}
    return out


def ablate(
    config: Config,
    seeds: Sequence[int],
    root: Path,
    chosen: Mapping[str, Settings],
    on_line: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Run all variants for all seeds; return one row of metrics a variant and seed.

    Parameters
    ----------
    config : Config
        What the variants differ from.
    root : Path
        ``seed-N/VARIANT`` state directories, and ``ablation.json``, are written there.
    chosen : mapping
        Of `variants`.
    on_line : callable
        Called with a line a finished variant.

    Raises
    ------
    UserError
        If a process ends with an error; its last lines are given.
    """
    with tempfile.TemporaryDirectory(prefix="ease-flower-") as scratch:
        app = make_bundle(Path(scratch) / "ease-flower", version("ease-flower"))

        def one_seed(seed: int) -> None:
            folder = root / f"seed-{seed}"
            base = replace(config, seed=seed, state_dir="").to_run_config()
            spec = [
                {"name": folder_name(name), "settings": {**base, **settings}}
                for name, settings in chosen.items()
            ]
            path = Path(scratch) / f"{seed}.json"
            path.write_text(json.dumps({"root": str(folder), "variants": spec}), encoding="utf-8")
            _study(app, path, lambda line: on_line(f"seed {seed}: {line}"))

        with ThreadPoolExecutor(max(1, min(len(seeds), os.cpu_count() or 1))) as pool:
            list(pool.map(one_seed, seeds))
    rows = [
        read_json(root / f"seed-{seed}" / folder_name(name) / "reports" / "metrics.json")
        | {"variant": name, "settings": dict(settings)}
        for name, settings in chosen.items()
        for seed in seeds
    ]
    write_json(root / "ablation.json", rows)
    return rows


def folder_name(variant: str) -> str:
    """Make a folder name of a variant's.

    Examples
    --------
    >>> folder_name("client/no lock, no projection")
    'client-no-lock-no-projection'
    """
    return "-".join("".join(c if c.isalnum() or c == "." else " " for c in variant).split())


def ablation_table(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Write one line a variant: gaps to retrain, mean and standard deviation over seeds."""
    keys = ("forget_r1", "retain_r1", "test_r1", "membership_auc")
    out = [["variant", "forget gap", "retain gap", "test gap", "AUC gap", "bytes %", "time %"]]
    for name in dict.fromkeys(str(row["variant"]) for row in rows):
        found = summarise([dict(row) for row in rows if row["variant"] == name])
        cells = [_cell(found["gap"][k], 3 if "auc" in k else 1, "+") for k in keys]
        cells += [_percent(found["cost"][k]) for k in ("bytes_ratio", "client_time_ratio")]
        out.append([name, *cells])
    return out


def _cell(spread: Mapping[str, Any] | None, digits: int, sign: str) -> str:
    if spread is None:
        return "-"
    text = f"{spread['mean']:{sign}.{digits}f}"
    return text if spread["sd"] is None else f"{text} ± {spread['sd']:.{digits}f}"


def _percent(spread: Mapping[str, Any] | None) -> str:
    return "-" if spread is None else f"{100 * spread['mean']:.1f}"


def _study(app: Path, spec: Path, on_line: Callable[[str], None]) -> None:
    last: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-m", "strategies.study", str(spec)],
        cwd=app,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last = [*last[-20:], line.rstrip()]
            if line.startswith("done "):
                on_line(line.rstrip().removeprefix("done "))
    if process.returncode:
        raise UserError("a study ended with an error:\n" + "\n".join(last))
