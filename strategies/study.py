"""Many unlearning runs of one seed in one process, on one trained and one retrained model.

``python -m strategies.study SPEC.json`` (see `ease_flower.cli.ablate`, which writes the spec and
starts one process a seed). A variant whose metrics.json exists is not run again, so that a study
goes on where it was stopped.
"""

import hashlib
import json
import logging
import os
import shutil
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from flwr.clientapp import ClientApp

from ease_flower.config import Config

from .local_grid import LocalGrid
from .phases import Run

CLIENT_APP = "clients.client_app:app"  # by name, as Flower itself refers to it


def main(spec_file: str) -> None:
    """Run the variants of a spec.

    The spec is JSON: ``root`` (folder), and ``variants``: a list of ``name`` and ``settings``, a
    whole run config each. Variants whose recipes agree share the trained model, and those whose
    requests name the same pairs the retrained one.
    """
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel("ERROR")
    spec = json.loads(Path(spec_file).read_text(encoding="utf-8"))
    module, _, name = CLIENT_APP.partition(":")
    app = getattr(import_module(module), name)
    for variant in spec["variants"]:
        folder = Path(spec["root"]) / variant["name"]
        if not (folder / "reports" / "metrics.json").is_file():
            run_variant(app, Path(spec["root"]), folder, variant["settings"])
        print(f"done {variant['name']}", flush=True)


def run_variant(app: ClientApp, root: Path, folder: Path, settings: Mapping[str, Any]) -> None:
    """Train and retrain what is not there yet, then unlearn, recover and evaluate a copy."""
    config = Config.from_run_config(settings)
    trained = root / f"train-{_digest(config.recipe())}"
    request = [config.scope, config.forget, config.forget_share, config.forget_file]
    reference = root / f"retrain-{_digest([config.recipe(), request])}"
    retrained = reference.with_name(f"{reference.name}-{config.later_rounds}")
    if not trained.is_dir():
        _carry_out(app, settings, trained.with_suffix(".partial"), "train")
        trained.with_suffix(".partial").rename(trained)
    _retrain(app, {**settings, "later-rounds": 0}, trained, reference)
    if config.later_rounds:
        _retrain(app, settings, reference, retrained)
    else:
        retrained = reference
    partial = _copied(retrained, folder.with_suffix(".partial"))
    for phase in ("unlearn", "recover", "evaluate"):
        _carry_out(app, settings, partial, phase)
    shutil.rmtree(partial / "history")
    shutil.rmtree(partial / "nodes")
    partial.rename(folder)


def _retrain(app: ClientApp, settings: Mapping[str, Any], source: Path, target: Path) -> None:
    """Retrain, or go on retraining, in a copy of a state directory."""
    if target.is_dir():
        return
    partial = _copied(source, target.with_suffix(".partial"))
    _carry_out(app, settings, partial, "retrain")
    manifest = json.loads((partial / "manifest.json").read_text(encoding="utf-8"))
    del manifest["requests"]  # the variants differ in the request's settings
    (partial / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    partial.rename(target)


def _carry_out(app: ClientApp, settings: Mapping[str, Any], folder: Path, phase: str) -> None:
    config = Config.from_run_config({**settings, "state-dir": str(folder), "phase": phase})
    grid = LocalGrid(app, config.num_clients, config.to_run_config())
    Run(grid, config, folder).carry_out()


def _copied(source: Path, target: Path) -> Path:
    """Copy a state directory; its files are replaced, never changed, so links will do."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, copy_function=os.link)
    return target


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:10]


if __name__ == "__main__":
    main(sys.argv[1])
