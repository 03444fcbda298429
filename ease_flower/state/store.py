"""The server's state directory: one manifest as commit point, models, and the update history.

manifest.json   what is done (written last, so a killed run continues at its last whole round)
global/         theta of each track and round, safetensors, float32
history/        updates of clients (`ease_flower.state.history`)
reports/        metrics.json, report.html
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ease_flower.errors import StateError
from ease_flower.state.files import file_sha256, read_json, read_tensor, write_json, write_tensors
from ease_flower.state.history import History

SCHEMA = 1
Theta = NDArray[np.float32]


class Store:
    """Read and commit the state of one federation.

    Parameters
    ----------
    root : Path or str
        Absolute; made at the first commit.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).expanduser()
        if not self.root.is_absolute():
            raise StateError(f"state-dir {str(root)!r} must be absolute")
        self.manifest: dict[str, Any] = {}
        path = self.root / "manifest.json"
        if path.exists():
            self.manifest = read_json(path)
            if not isinstance(self.manifest, dict) or self.manifest.get("schema") != SCHEMA:
                raise StateError(f"{path}: not a manifest of schema {SCHEMA}; use a new state-dir")
        self.history = History(self.root, self.manifest.get("history", []))

    def open_as(self, backbone: str, digest: str, recipe: Mapping[str, Any], theta: Theta) -> None:
        """Begin a state directory, or check that this one is of the same model and recipe.

        Raises
        ------
        StateError
            Says what differs.
        """
        if not self.manifest:
            self.manifest = {
                "schema": SCHEMA,
                "backbone": backbone,
                "backbone-digest": digest,
                "recipe": dict(recipe),
                "models": {},
                "rounds": {},
                "costs": {},
                "clients": {},
                "forgotten": [],
                "dropped": [],
            }
            self.put_model("initial", 0, theta)
            self.commit()
            return
        problems = state_problems(self.manifest, backbone, recipe)
        if not problems and self.manifest["backbone-digest"] != digest:
            problems = [
                f"backbone {backbone!r} has other weights ({digest}) than this state directory was "
                f"made with ({self.manifest['backbone-digest']})"
            ]
        if problems:
            raise StateError(
                "\n".join(f"state-dir {self.root}: {p}; use a new state-dir" for p in problems)
            )

    def rounds_done(self, track: str) -> int:
        """Return how many rounds of a track are committed."""
        return int(self.manifest.get("rounds", {}).get(track, 0))

    def put_model(self, track: str, rnd: int, theta: Theta) -> str:
        """Write theta of a track's round (not yet committed); return its SHA-256."""
        name = f"global/{track}-r{rnd:04d}.safetensors"
        digest = write_tensors(self.root / name, {"theta": theta.astype(np.float32)})
        self.manifest["models"].setdefault(track, {})[str(rnd)] = {"file": name, "sha256": digest}
        self.manifest["rounds"][track] = rnd
        return digest

    def prune(self, track: str) -> None:
        """Delete all models of a track but the first and the last, from disk and manifest.

        The global models of all rounds and the updates of those who stay would together give
        away the updates of a client that left.
        """
        models = self.manifest["models"].get(track, {})
        for key in sorted(models, key=int)[1:-1]:
            (self.root / models.pop(key)["file"]).unlink(missing_ok=True)

    def model(self, track: str, rnd: int | None = None) -> Theta:
        """Read theta of a track, of its last round by default; checked against its SHA-256."""
        models = self.manifest.get("models", {}).get(track, {})
        key = str(self.rounds_done(track) if rnd is None else rnd)
        if key not in models:
            raise StateError(f"state-dir {self.root}: no model of {track!r}, round {key}")
        path = self.root / models[key]["file"]
        if file_sha256(path) != models[key]["sha256"]:
            raise StateError(f"{path}: changed since it was written (SHA-256 differs)")
        return read_tensor(path, "theta").astype(np.float32)

    def put_basis(self, basis: NDArray[np.float64]) -> None:
        """Write U_mu, of shape (d, m), float64 (not yet committed)."""
        name = "global/u-mu.safetensors"
        self.manifest["basis"] = {
            "file": name,
            "sha256": write_tensors(self.root / name, {"basis": basis}),
        }

    def basis(self) -> NDArray[np.float64]:
        """Read U_mu; ndarray of shape (d, m), float64, checked against its SHA-256."""
        entry = self.manifest["basis"]
        path = self.root / entry["file"]
        if file_sha256(path) != entry["sha256"]:
            raise StateError(f"{path}: changed since it was written (SHA-256 differs)")
        return read_tensor(path, "basis").astype(np.float64)

    def has(self, track: str) -> bool:
        """Say whether a track has any committed model."""
        return track in self.manifest.get("models", {})

    def model_hash(self, track: str, rnd: int | None = None) -> str:
        """Return the SHA-256 of a track's model file."""
        key = str(self.rounds_done(track) if rnd is None else rnd)
        return str(self.manifest["models"][track][key]["sha256"])

    def add_cost(self, phase: str, **amounts: float) -> None:
        """Add bytes, seconds or counts to a phase's account (not yet committed)."""
        account = self.manifest["costs"].setdefault(phase, {})
        for key, amount in amounts.items():
            account[key] = account.get(key, 0) + amount

    def commit(self) -> None:
        """Write the manifest; what was put before this call now counts."""
        self.manifest["history"] = self.history.index()
        write_json(self.root / "manifest.json", self.manifest)


def state_problems(
    manifest: Mapping[str, Any], backbone: str, recipe: Mapping[str, Any]
) -> list[str]:
    """Say where a manifest does not fit a backbone and recipe; empty if it does.

    Examples
    --------
    >>> made = {"backbone": "tiny", "recipe": {"seed": 0}}
    >>> state_problems(made, "tiny", {"seed": 1})
    ['was made with seed = 0, not 1']
    """
    problems = []
    if manifest.get("backbone") != backbone:
        problems.append(f"was made with backbone {manifest.get('backbone')!r}, not {backbone!r}")
    old = manifest.get("recipe", {})
    problems += [
        f"was made with {key} = {old.get(key)!r}, not {value!r}"
        for key, value in recipe.items()
        if key != "backbone" and old.get(key) != value
    ]
    return problems
