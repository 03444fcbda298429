"""What the commands share: options, tables, and errors a user can mend."""

import json
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ease_flower.config import Config
from ease_flower.errors import UserError

out, err = Console(), Console(stderr=True)


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
def user_errors() -> Any:
    """Print what a user can mend and leave with 2; no stack trace."""
    try:
        yield
    except UserError as error:
        for line in str(error).splitlines():
            err.print(f"error: {line}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None


def print_table(rows: list[list[str]]) -> None:
    """Print rows, the first as the header."""
    table = Table(*rows[0])
    for row in rows[1:]:
        table.add_row(*row)
    out.print(table)


def configure(source: str | None, pairs: list[str] | None, state_dir: Path | None) -> Config:
    """Read a config and the ``--set`` options over it."""
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
