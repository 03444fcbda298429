"""The packaging promise: one name in site-packages, an app that loads, one direction of imports."""

import ast
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from ease_flower.cli.bundle import make_bundle
from ease_flower.config import Config

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FLOORS = {
    "errors": 0,
    "seeding": 0,
    "config": 0,
    "protocol": 0,
    "data": 1,
    "state": 1,
    "model": 2,
    "metrics": 3,
    "unlearning": 4,
    "report": 4,
    "cli": 5,
}


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.append(node.module)
    return found


LIBRARY = sorted((ROOT / "ease_flower").rglob("*.py"))


@pytest.mark.parametrize("path", LIBRARY, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_library_imports_downwards_and_never_flower(path):
    own = path.relative_to(ROOT / "ease_flower").parts[0].removesuffix(".py")
    for module in imports(path):
        top, *rest = module.split(".")
        assert top not in ("flwr", "ray", "strategies", "clients"), module
        if top == "ease_flower" and rest and own in FLOORS:
            assert FLOORS[rest[0]] <= FLOORS[own], f"{path.name} imports {module} from above"


@pytest.mark.parametrize("folder", ["strategies", "clients"])
def test_server_and_node_never_import_each_other(folder):
    other = {"strategies": "clients", "clients": "strategies"}[folder]
    for path in (ROOT / folder).glob("*.py"):
        tops = {m.split(".")[0] for m in imports(path)}
        assert not tops & {other, folder}, f"{path.name}: use relative imports inside the app"


def test_run_config_in_pyproject_equals_the_documented_defaults():
    assert PYPROJECT["tool"]["flwr"]["app"]["config"] == Config().to_run_config()


def test_listed_packages_are_exactly_the_folders():
    folders = {
        ".".join(("ease_flower", *p.parent.relative_to(ROOT / "ease_flower").parts))
        for p in (ROOT / "ease_flower").rglob("__init__.py")
    }
    listed = set(PYPROJECT["tool"]["setuptools"]["packages"])
    assert listed == folders | {"ease_flower.strategies", "ease_flower.clients"}


def test_no_module_is_named_like_a_test():
    """Flower leaves files such as test_x.py out of the bundle it makes of an app."""
    for folder in ("ease_flower", "strategies", "clients"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not path.name.startswith("test_") and not path.stem.endswith("_test"), path


def test_wheel_holds_one_top_level_name_and_its_app_imports(tmp_path):
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*pip, "-w", str(tmp_path), str(ROOT)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(site)
    tops = {name.split("/")[0] for name in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"ease_flower"}
    assert "ease_flower/conf/demo.toml" in names and "ease_flower/py.typed" in names
    for decoy in ("clients", "strategies"):  # PyPI has packages of these names
        (site / decoy).mkdir()
        (site / decoy / "__init__.py").write_text("raise RuntimeError('decoy')")
    code = "import ease_flower.clients.client_app, ease_flower.strategies.server_app as s; s.app"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=site, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_bundle_is_a_whole_flower_app(tmp_path):
    folder = make_bundle(tmp_path / "app", "0.1.0")
    done = subprocess.run(
        [Path(sys.executable).with_name("flwr"), "build", "--app", str(folder)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (fab,) = tmp_path.glob("*.fab")
    names = set(zipfile.ZipFile(fab).namelist())
    assert {"strategies/server_app.py", "clients/client_app.py", "ease_flower/config.py"} <= names


def test_the_readme_starts_with_the_two_commands():
    text = (ROOT / "README.md").read_text()
    assert text.index("make demo") < text.index("make test") < 800
