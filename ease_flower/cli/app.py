"""The commands; each prints a table for people, or JSON with ``--format json``."""

import json
import os
import platform
import re
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ease_flower.config import Config
from ease_flower.errors import UserError

app = typer.Typer(
    add_completion=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Federated multimodal unlearning on Flower.",
)
out, err = Console(), Console(stderr=True)
ROUND = re.compile(r"\[(train|retrain|recover)\] round (\d+): (\d+) replies")


class Format(StrEnum):
    """How a command prints its result."""

    text = "text"
    json = "json"


ConfigOption = Annotated[
    str | None, typer.Option("--config", "-c", help="TOML file, or a shipped name: demo, flickr8k.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="key=value; may be given several times.")
]
FormatOption = Annotated[Format, typer.Option("--format", help="text or json")]
StateOption = Annotated[Path, typer.Option("--state-dir", help="Where runs keep their state.")]
CpusOption = Annotated[int, typer.Option(min=1, help="CPUs of one simulated client.")]


@contextmanager
def _user_errors() -> Any:
    """Print what a user can mend and leave with 2; no stack trace."""
    try:
        yield
    except UserError as error:
        for line in str(error).splitlines():
            err.print(f"error: {line}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None


@app.command()
def demo(
    state_dir: StateOption = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="One seed for everything.")] = 0,
    cpus_per_client: CpusOption = 1,
    format_: FormatOption = Format.text,
) -> None:
    """Train with five clients on drawn scenes, forget one, and compare with retraining."""
    run("demo", [f"seed={seed}"], state_dir, None, cpus_per_client, False, format_)


@app.command()
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
    with _user_errors():
        chosen = _config(config, set_, state_dir)
        if chosen.num_clients < 2:
            chosen = replace(chosen, num_clients=2)
        every = _seeds(seeds, chosen.seed)
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
        "retrain": config.rounds if config.reference else 0,
        "recover": config.recover_rounds,
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
    from ease_flower.cli.summary import summarise, summary_rows
    from ease_flower.report import summary_table
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
    _print_table(table)
    cost = result["cost"] or {}
    for key, label in (("bytes_ratio", "bytes"), ("client_time_ratio", "client time")):
        value = cost.get(key)
        value = value["mean"] if isinstance(value, dict) else value
        if value is not None:
            out.print(f"{label}: {100 * value:.1f} % of retraining")
    out.print(f"report: {path}" if not many else f"summary: {path}", soft_wrap=True)


def _print_table(rows: list[list[str]]) -> None:
    table = Table(*rows[0])
    for row in rows[1:]:
        table.add_row(*row)
    out.print(table)


@app.command()
def validate(
    config: ConfigOption = None,
    set_: SetOption = None,
    state_dir: Annotated[Path | None, typer.Option("--state-dir")] = None,
    format_: FormatOption = Format.text,
) -> None:
    """Say all that is wrong with a config, its data and its state directory, at once."""
    from ease_flower.cli.validate import problems
    from ease_flower.errors import InvalidInput

    found: list[str] = []
    try:
        found = problems(_config(config, set_, state_dir))
    except InvalidInput as error:
        found = error.problems
    except UserError as error:
        found = [str(error)]
    if format_ is Format.json:
        out.print_json(json.dumps({"ok": not found, "problems": found}))
    else:
        for problem in found:
            err.print(f"error: {problem}", style="red", markup=False, soft_wrap=True)
        if not found:
            out.print("nothing is wrong")
    raise typer.Exit(2 if found else 0)


@app.command("plan")
def plan_command(
    config: ConfigOption = None, set_: SetOption = None, format_: FormatOption = Format.text
) -> None:
    """Say how many rounds, bytes and how much history a run will take."""
    from ease_flower.cli.plan import plan

    with _user_errors():
        planned = plan(_config(config, set_, None))
    if format_ is Format.json:
        out.print_json(json.dumps(planned))
        return
    _print_table([["what", "amount"], *([k, _amount(v)] for k, v in planned.items())])


def _amount(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_amount(v)}" for key, v in value.items())
    return f"{value:.3f}" if isinstance(value, float) else str(value)


@app.command()
def report(
    state_dir: Annotated[Path, typer.Argument(help="State directory of a finished run.")],
    format_: FormatOption = Format.text,
) -> None:
    """Write the report of a finished run again and print its table."""
    from ease_flower.report import ReportData, render_report, summary_table
    from ease_flower.state.files import read_json, write_bytes

    with _user_errors():
        source = state_dir / "reports" / "report.json"
        if not source.is_file():
            raise UserError(f"{source}: no such file; run phase 'evaluate' in this state-dir first")
        data = ReportData.from_json(read_json(source))
        path = source.with_name("report.html")
        write_bytes(path, render_report(data).encode())
    if format_ is Format.json:
        out.print_json(json.dumps(data.metrics))
        return
    _print_table(summary_table(data.metrics))
    out.print(f"report: {path.resolve()}", soft_wrap=True)


@app.command()
def env(format_: FormatOption = Format.text) -> None:
    """Say what a bug report needs to say."""
    names = ("ease-flower", "flwr", "torch", "open_clip_torch", "peft", "ray", "numpy")
    facts = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": str(os.cpu_count()),
        **{name: _version(name) for name in names},
    }
    if format_ is Format.json:
        out.print_json(json.dumps(facts))
    else:
        _print_table([["what", "version"], *([k, v] for k, v in facts.items())])


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _config(source: str | None, pairs: list[str] | None, state_dir: Path | None) -> Config:
    from ease_flower.cli.validate import read_config

    overrides: dict[str, str] = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--set {pair}: write key=value")
        overrides[key.strip()] = value.strip()
    if state_dir is not None:
        overrides["state-dir"] = json.dumps(str(state_dir.resolve()))
    return read_config(source, overrides)


def _seeds(text: str | None, default: int) -> list[int]:
    if text is None:
        return [default]
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds {text}: write whole numbers with commas, such as 0,1,2") from None
    if len(set(found)) != len(found) or min(found) < 0:
        raise UserError(f"--seeds {text}: each seed once, from 0")
    return found


def main() -> None:
    """Entry point of the command."""
    app()


if __name__ == "__main__":
    main()
