"""The command line; each command prints a table for people, or JSON with ``--format json``."""

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer

from ease_flower.errors import UserError

from .common import (
    ConfigOption,
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
from .run import demo, parse_seeds, run

app = typer.Typer(
    add_completion=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Federated multimodal unlearning on Flower.",
)
app.command()(demo)
app.command()(run)


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
        found = problems(configure(config, set_, state_dir))
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

    with user_errors():
        planned = plan(configure(config, set_, None))
    if format_ is Format.json:
        out.print_json(json.dumps(planned))
        return
    print_table([["what", "amount"], *([k, _amount(v)] for k, v in planned.items())])


def _amount(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_amount(v)}" for key, v in value.items())
    return f"{value:.3f}" if isinstance(value, float) else str(value)


@app.command("ablate")
def ablate_command(
    config: ConfigOption = None,
    set_: SetOption = None,
    state_dir: StateOption = Path("runs/ablation"),
    seeds: Annotated[str, typer.Option(help="Several seeds: 0,1,2.")] = "0,1,2",
    scopes: Annotated[str, typer.Option(help="Of client,class,sample.")] = "client,class,sample",
    only: Annotated[str | None, typer.Option(help="Variants whose name holds this.")] = None,
    format_: FormatOption = Format.text,
) -> None:
    """Switch parts of EASE off, or turn them, and compare; goes on where it was stopped."""
    from ease_flower.cli.ablate import ablate
    from ease_flower.cli.variants import SCOPES, variants
    from ease_flower.report.ablation import ablation_table

    with user_errors():
        chosen = configure(config, set_, None)
        asked = [scope.strip() for scope in scopes.split(",")]
        unknown = [scope for scope in asked if scope not in SCOPES]
        if unknown:
            raise UserError(f"--scopes {','.join(unknown)}: allowed: {', '.join(SCOPES)}")
        every = {k: v for k, v in variants(asked, chosen).items() if not only or only in k}
        if not every:
            raise UserError(f"--only {only}: no variant; try one of {', '.join(SCOPES)}")
        root = state_dir.resolve()
        rows = ablate(chosen, parse_seeds(seeds, 0), root, every, lambda t: err.print(t))
    if format_ is Format.json:
        out.print_json(json.dumps(rows))
        return
    print_table(ablation_table(rows))
    out.print(f"rows: {root / 'ablation.json'}\npage: {root / 'ablation.html'}", soft_wrap=True)


@app.command()
def report(
    state_dir: Annotated[Path, typer.Argument(help="State directory of a finished run.")],
    format_: FormatOption = Format.text,
) -> None:
    """Write the report of a finished run again and print its table."""
    from ease_flower.report import ReportData, render_report, summary_table
    from ease_flower.state.files import read_json, write_bytes

    with user_errors():
        source = state_dir / "reports" / "report.json"
        if not source.is_file():
            raise UserError(f"{source}: no such file; run phase 'evaluate' in this state-dir first")
        data = ReportData.from_json(read_json(source))
        path = source.with_name("report.html")
        write_bytes(path, render_report(data).encode())
    if format_ is Format.json:
        out.print_json(json.dumps(data.metrics))
        return
    print_table(summary_table(data.metrics))
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
        print_table([["what", "version"], *([k, v] for k, v in facts.items())])


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def main() -> None:
    """Entry point of the command."""
    app()


if __name__ == "__main__":
    main()
