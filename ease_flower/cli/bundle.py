"""The Flower app as a folder of its own, made afresh for every run.

``flwr run`` needs a folder with a pyproject and the packages it names. From a checkout and from
an installed wheel the same folder is made, away from the working directory, so that neither
stray files nor another checkout's code get into a run.
"""

import shutil
from pathlib import Path

from ease_flower.config import Config, Scalar

PACKAGE = Path(__file__).resolve().parents[1]
APP_FOLDERS = ("strategies", "clients")
PYPROJECT = """\
[project]
name = "ease-flower"
version = "{version}"
description = "Federated multimodal unlearning"
license = "Apache-2.0"
dependencies = ["flwr[simulation]>=1.42.0,<1.43"]

[tool.flwr.app]
publisher = "ease"
fab-include = ["ease_flower/**/*.py", "strategies/**/*.py", "clients/**/*.py"]

[tool.flwr.app.components]
serverapp = "strategies.server_app:app"
clientapp = "clients.client_app:app"

[tool.flwr.app.config]
{config}
"""


def app_folder(name: str) -> Path:
    """Find an app folder: beside the package in a checkout, inside it in a wheel."""
    for parent in (PACKAGE, PACKAGE.parent):
        if (parent / name / "__init__.py").is_file():
            return parent / name
    raise FileNotFoundError(f"{name}/ is neither in {PACKAGE} nor beside it; reinstall ease-flower")


def make_bundle(folder: Path, version: str) -> Path:
    """Write the Flower app into an empty folder; return it."""
    leave = shutil.ignore_patterns("__pycache__", *APP_FOLDERS)
    shutil.copytree(PACKAGE, folder / "ease_flower", ignore=leave)
    for name in APP_FOLDERS:
        shutil.copytree(app_folder(name), folder / name, ignore=leave)
    config = to_toml(Config().to_run_config())
    text = PYPROJECT.format(version=version, config=config)
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder


def to_toml(values: dict[str, Scalar]) -> str:
    r"""Write scalar values as TOML.

    Examples
    --------
    >>> print(to_toml({"rounds": 3, "forget": 'a "b"', "reference": True}))
    rounds = 3
    forget = "a \"b\""
    reference = true
    """
    return "\n".join(f"{key} = {_scalar(value)}" for key, value in values.items())


def _scalar(value: Scalar) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return repr(value)
