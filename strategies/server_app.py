"""Flower's entry on the server."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR, INFO
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout
from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from ease_flower.config import Config
from ease_flower.errors import StateError, UserError

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the configured phases; a run that cannot do what it was asked for ends as failed."""
    from .phases import Run  # imports torch: a misspelt key is told without it

    try:
        config = Config.from_run_config(context.run_config)
        state_dir = Path(config.state_dir).expanduser() if config.state_dir else _own(context)
        log(INFO, "state directory: %s", state_dir)
        with only_one(state_dir):
            report = Run(grid, config, state_dir).carry_out()
    except UserError as error:
        for line in str(error).splitlines():
            log(ERROR, "%s", line)
        raise
    if report:
        metrics = json.loads((report.parent / "metrics.json").read_text(encoding="utf-8"))
        log(INFO, "gap to retrain: %s", metrics["gap"])
        log(INFO, "report: %s", report)


@contextmanager
def only_one(state_dir: Path) -> Iterator[None]:
    """Hold a state directory, so that two runs never write to the same one."""
    lock = FileLock(state_dir.with_name(f".{state_dir.name}.lock"), timeout=0)
    try:
        state_dir.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise StateError(
            f"state-dir {state_dir}: another run is using it; wait for it, or stop it with "
            "'flwr stop'"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _own(context: Context) -> Path:
    """Return a new state directory for a run that was given none."""
    return Path(platformdirs.user_state_dir("ease-flower")) / "runs" / str(context.run_id)
