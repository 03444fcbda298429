"""Runs in this process, small enough for a test."""

from pathlib import Path
from typing import Any

from clients.client_app import app as client_app
from ease_flower.config import Config
from strategies.local_grid import LocalGrid
from strategies.phases import Run

SMALL = {
    "num-clients": 3,
    "pairs-per-client": 12,
    "holdout-per-client": 8,
    "test-pairs": 16,
    "gallery": 16,
    "rounds": 3,
    "local-epochs": 1,
    "batch-size": 6,
    "lora-rank": 4,
    "adapted-blocks": 1,
    "wait-s": 0.0,
}


def simulate(state_dir: Path, grid_options: dict[str, Any] | None = None, **keys: Any) -> Run:
    """Run phases in this process; keys in snake_case override `SMALL`."""
    run_config = SMALL | {k.replace("_", "-"): v for k, v in keys.items()}
    run_config["state-dir"] = str(state_dir)
    config = Config.from_run_config(run_config)
    options = {"app": client_app, **(grid_options or {})}
    grid = LocalGrid(num_nodes=config.num_clients, run_config=config.to_run_config(), **options)
    run = Run(grid, config, state_dir)
    run.carry_out()
    return run
