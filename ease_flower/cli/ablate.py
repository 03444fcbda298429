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
from ease_flower.cli.variants import Settings, folder_name
from ease_flower.config import Config
from ease_flower.errors import UserError
from ease_flower.report.ablation import render_ablation
from ease_flower.state.files import read_json, write_bytes, write_json


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
        ``seed-N/VARIANT`` state directories, ``ablation.json`` and its page are written there.
    chosen : mapping
        Of `ease_flower.cli.variants`.
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
    write_bytes(root / "ablation.html", render_ablation(rows, config.to_run_config()).encode())
    return rows


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
