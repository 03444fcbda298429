"""Everything that can be known to be wrong before round 1, all at once."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ease_flower.config import Config
from ease_flower.data import Pairs
from ease_flower.data.captions import check_images, load_karpathy
from ease_flower.data.federation import (
    CLIENT_SPLIT,
    TEST_SPLIT,
    captions_file,
    client_data,
    image_folder,
)
from ease_flower.errors import InvalidInput, UserError
from ease_flower.model.backbones import backbone_problem
from ease_flower.state import Store
from ease_flower.state.store import state_problems
from ease_flower.unlearning.requests import ForgetRequest, forget_rows, request_problems

CONF = Path(__file__).resolve().parents[1] / "conf"


def read_config(source: str | None, overrides: Mapping[str, str]) -> Config:
    """Read a run config: a TOML file or the name of a shipped one, then single settings.

    Parameters
    ----------
    source : str, optional
        Path of a TOML file, or a name such as ``flickr8k``; None takes the defaults.
    overrides : mapping
        ``key: value`` as text; the value is read as TOML, and as plain text where it is none.

    Raises
    ------
    InvalidInput
        With all problems of file and settings.
    """
    values: dict[str, Any] = {}
    if source is not None:
        path = Path(source)
        if not path.is_file() and (CONF / f"{source}.toml").is_file():
            path = CONF / f"{source}.toml"
        if not path.is_file():
            shipped = ", ".join(sorted(p.stem for p in CONF.glob("*.toml")))
            raise InvalidInput([f"--config {source}: no such file; shipped: {shipped}"])
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidInput([f"--config {path}: not TOML: {error}"]) from None
    for key, text in overrides.items():
        values[key] = _scalar(text)
    return Config.from_run_config(values)


def _scalar(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def problems(config: Config) -> list[str]:
    """Say all that stands in the way of a simulated run; empty if nothing does.

    Nothing is written and no backbone is built.
    """
    found = []
    problem = backbone_problem(config.backbone)
    if problem:
        found.append(problem)
    names = [f"site-{i}" for i in range(config.num_clients)]
    if config.num_clients:
        found += request_problems(ForgetRequest.of(config), names)
    found += _data_problems(config)
    if config.state_dir:
        found += _state_problems(config)
    return found


def _data_problems(config: Config) -> list[str]:
    found: list[str] = []
    try:
        if config.data == "karpathy":
            folder = Path(config.data_root).expanduser()
            path = captions_file(folder, config.captions)
            for split in (CLIENT_SPLIT, TEST_SPLIT):
                found += check_images(load_karpathy(path, image_folder(folder), split))
        if config.num_clients:
            found += _nothing_to_forget(
                config,
                [
                    client_data(config, i, config.num_clients).train
                    for i in range(config.num_clients)
                ],
            )
    except UserError as error:
        found.append(str(error))
    return found


def _nothing_to_forget(config: Config, held: list[Pairs]) -> list[str]:
    """Say why a class or sample request names no pair of any simulated client."""
    request = ForgetRequest.of(config)
    if request.scope == "client":
        return []
    rows = [forget_rows(request, config, f"site-{i}", pairs) for i, pairs in enumerate(held)]
    if sum(map(len, rows)):
        return []
    known = sorted({label for pairs in held for label in pairs.labels} - {""})
    hint = f"classes: {', '.join(known)}" if known else "a class is a word of most captions"
    return [f"forget = {config.forget!r}: no client holds a pair of this {request.scope}; {hint}"]


def _state_problems(config: Config) -> list[str]:
    try:
        store = Store(config.state_dir)
    except UserError as error:
        return [str(error)]
    if not store.manifest:
        return []
    differ = state_problems(store.manifest, config.backbone, config.recipe())
    return [f"state-dir {store.root}: {problem}; use a new state-dir" for problem in differ]


def check(config: Config) -> None:
    """Raise `InvalidInput` with all problems, if there are any."""
    found = problems(config)
    if found:
        raise InvalidInput(found)
