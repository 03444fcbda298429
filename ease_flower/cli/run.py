"""``ease-flower run`` and ``demo``: simulate, wait, show the table; fail if the run failed."""

import json
import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ease_flower.config import Config
from ease_flower.errors import UserError

from .common import (
    ConfigOption,
    CpusOption,
    Format,
    FormatOption,
    SetOption,
    StateOption,
    configure,
    err,
    out,
    print_table,
    user_errors,
)

ROUND = re.compile(r"\[(train|retrain|recover)\] round (\d+): (\d+) replies")


def demo(
    state_dir: StateOption = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="One seed for everything.")] = 0,
    cpus_per_client: CpusOption = 1,
    format_: FormatOption = Format.text,
) -> None:
    """Train with five clients on drawn scenes, forget one, and compare with retraining."""
    run("demo", [f"seed={seed}"], state_dir, None, cpus_per_client, False, format_)


def run(
    config: ConfigOption = None,
    set_: SetOption = None,
    state_dir: StateOption = Path("runs/default"),
    seeds: Annotated[str | None, typer.Option(help="Several seeds: 0,1,2.")] = None,
    cpus_per_client: CpusOption = 1,
    verbose: Annotated[bool, typer.Option(help="Show all lines of the run.")] = False,
    format_: FormatOption = Format.text,
) -> None:
    """Run a simulation with ``flwr run``, wait for it, and fail if it failed."""
    with user_errors():
        chosen = configure(config, set_, state_dir)
        if chosen.num_clients < 2:
            chosen = replace(chosen, num_clients=2)
        every = parse_seeds(seeds, chosen.seed)
        runs = [
            replace(
                chosen,
                seed=seed,
                state_dir=str(state_dir.resolve() / (f"seed-{seed}" if seeds else "")),
            )
            for seed in every
        ]
        from ease_flower.cli.validate import check

        for one in runs:
            check(one)
        results = [_run_one(one, cpus_per_client, verbose, format_) for one in runs]
        if not all(results):
            return
        _finish(results, state_dir.resolve(), bool(seeds), format_)


def _run_one(
    config: Config, cpus_per_client: int, verbose: bool, format_: Format
) -> dict[str, Any] | None:
    """Run one seed; leave with 1 and the reason if it fails; None if nothing was evaluated."""
    from ease_flower.cli.launch import launch

    if config.backbone == "tiny":
        _pretrain_tiny()
    state = Path(config.state_dir)
    with _progress(config, quiet=verbose or format_ is Format.json) as on_line:
        show = (lambda text: err.print(text, markup=False, highlight=False)) if verbose else on_line
        outcome = launch(config, cpus_per_client, state.parent / f"{state.name}.log", show)
    if not outcome.ok:
        err.print(f"the run ended as {outcome.status}: {outcome.details}", style="red")
        for reason in outcome.reasons:
            err.print(f"  {reason}", markup=False, highlight=False, soft_wrap=True)
        err.print(f"all lines: {state.parent / f'{state.name}.log'}", soft_wrap=True)
        raise typer.Exit(1)
    metrics = state / "reports" / "metrics.json"
    if "evaluate" not in config.phases() or not metrics.exists():
        out.print(f"phase {config.phase!r} is done; state: {state}", soft_wrap=True)
        return None
    found: dict[str, Any] = json.loads(metrics.read_text(encoding="utf-8"))
    return found


def _pretrain_tiny() -> None:
    """Make the small backbone here, where progress can be shown, if it was not made before."""
    from ease_flower.model.tiny import load_tiny

    with Progress(*_columns(), console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("pretraining tiny, once", total=None)
        load_tiny(1, lambda done, total: bar.update(task, completed=done, total=total))


@contextmanager
def _progress(config: Config, quiet: bool) -> Any:
    """Yield a function that turns log lines into one bar a phase."""
    totals = {
        "train": config.rounds,
        "retrain": config.rounds + config.later_rounds if config.reference else 0,
        "recover": config.recover_rounds + config.later_rounds,
    }
    with Progress(*_columns(), console=err, disable=quiet or not err.is_terminal) as bar:
        title = f"seed {config.seed}: "
        tasks = {k: bar.add_task(title + k, total=n) for k, n in totals.items() if n}

        def on_line(text: str) -> None:
            found = ROUND.search(text)
            if found and found[1] in tasks:
                bar.update(tasks[found[1]], completed=int(found[2]))
                if not err.is_terminal and not quiet:
                    err.print(f"{title}{found[1]} round {found[2]}/{totals[found[1]]}")

        yield on_line


def _columns() -> tuple[TextColumn, BarColumn, TextColumn, TimeElapsedColumn]:
    return (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total}"),
        TimeElapsedColumn(),
    )


def _finish(
    results: list[dict[str, Any] | None], folder: Path, many: bool, format_: Format
) -> None:
    """Print the table of one run, or of several seeds with mean and spread."""
    from ease_flower.report import summary_table
    from ease_flower.report.summary import summarise, summary_rows
    from ease_flower.state.files import write_json

    rows = [row for row in results if row is not None]
    if not many:
        result, table = rows[0], summary_table(rows[0])
        path = folder / "reports" / "report.html"
    else:
        result = summarise(rows)
        table = summary_rows(result)
        path = folder / "summary.json"
        write_json(path, result)
    if format_ is Format.json:
        out.print_json(json.dumps(result))
        return
    print_table(table)
    cost = result["cost"] or {}
    for key, label in (("bytes_ratio", "bytes"), ("client_time_ratio", "client time")):
        value = cost.get(key)
        value = value["mean"] if isinstance(value, dict) else value
        if value is not None:
            out.print(f"{label}: {100 * value:.1f} % of retraining")
    out.print(f"report: {path}" if not many else f"summary: {path}", soft_wrap=True)


def parse_seeds(text: str | None, default: int) -> list[int]:
    """Read ``0,1,2``; without it there is one seed, the default."""
    if text is None:
        return [default]
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds {text}: write whole numbers with commas, such as 0,1,2") from None
    if len(set(found)) != len(found) or min(found) < 0:
        raise UserError(f"--seeds {text}: each seed once, from 0")
    return found
