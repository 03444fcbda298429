"""The update history: what each client sent in each round, on the server's disk.

One safetensors file a client and round, ``history/<client>/r0003.safetensors``, holding Delta =
theta_k^t - theta^{t-1} as float32 of shape (d,). The index (round, weight, SHA-256) is part of
the manifest, which is the commit point: files of a round that was never committed are ignored
and overwritten when the round is run again. Nothing here loads more than it is asked for.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from ease_flower.errors import StateError
from ease_flower.state.files import file_sha256, read_tensor, write_tensors


@dataclass(frozen=True)
class Update:
    """One entry of the index."""

    client: str
    round: int
    weight: int
    file: str
    sha256: str


class History:
    """Append-only updates below a folder; `index` is what the manifest committed.

    Parameters
    ----------
    root : Path
        The state directory.
    index : sequence of dict
        Committed entries.
    """

    def __init__(self, root: Path, index: Sequence[dict[str, Any]] = ()) -> None:
        self.root = root
        self.updates = [Update(**entry) for entry in index]

    def append(self, client: str, rnd: int, weight: int, delta: NDArray[np.floating]) -> None:
        """Write one update to disk and add it to the index (not yet committed)."""
        name = f"history/{safe_name(client)}/r{rnd:04d}.safetensors"
        digest = write_tensors(self.root / name, {"delta": np.asarray(delta, dtype=np.float32)})
        self.updates = [u for u in self.updates if (u.client, u.round) != (client, rnd)]
        self.updates.append(Update(client, rnd, int(weight), name, digest))

    def index(self) -> list[dict[str, Any]]:
        """Return the entries for the manifest, sorted by client and round."""
        return [asdict(u) for u in sorted(self.updates, key=lambda u: (u.client, u.round))]

    def clients(self) -> list[str]:
        """Name the clients that have updates, sorted."""
        return sorted({u.client for u in self.updates})

    def of(self, client: str) -> list[Update]:
        """Return one client's updates by round."""
        return sorted((u for u in self.updates if u.client == client), key=lambda u: u.round)

    def read(self, updates: Sequence[Update], part: slice = slice(None)) -> NDArray[np.float64]:
        """Read a part of some updates; ndarray of shape (len(updates), part), float64."""
        rows = [read_tensor(self.root / u.file, "delta", part) for u in updates]
        return np.stack(rows).astype(np.float64)

    def verify(self) -> None:
        """Compare every file with its SHA-256.

        Raises
        ------
        StateError
            Names the first file that is missing or was changed.
        """
        for update in self.updates:
            if file_sha256(self.root / update.file) != update.sha256:
                raise StateError(
                    f"{self.root / update.file}: changed since it was written (SHA-256 differs); "
                    "restore the file, or train again in a new state-dir"
                )

    def forget(self, client: str) -> int:
        """Take one client's updates out of the index (not yet committed); return how many."""
        gone = self.of(client)
        self.updates = [u for u in self.updates if u.client != client]
        return len(gone)

    def rewrite(
        self, client: str, kept: Sequence[tuple[Update, NDArray[np.floating]]], tag: str
    ) -> None:
        """Put other deltas in the place of a client's updates (not yet committed).

        Parameters
        ----------
        kept : sequence of (Update, ndarray of shape (d,))
            Updates that stay, with what is left of them; the client's others go.
        tag : str
            Makes the files' names new, so that a kill before the commit damages nothing.
        """
        self.updates = [u for u in self.updates if u.client != client]
        for update, delta in kept:
            name = f"history/{safe_name(client)}/r{update.round:04d}-{tag}.safetensors"
            digest = write_tensors(self.root / name, {"delta": np.asarray(delta, np.float32)})
            self.updates.append(Update(client, update.round, update.weight, name, digest))

    def sweep(self) -> None:
        """Delete every file the committed index does not name.

        In this order a kill in between loses nothing: the next call deletes what is left.
        """
        listed = {self.root / update.file for update in self.updates}
        for path in (self.root / "history").glob("*/*"):
            if path not in listed:
                path.unlink()
        for folder in (self.root / "history").glob("*"):
            if not any(folder.iterdir()):
                folder.rmdir()


def safe_name(client: str) -> str:
    """Make a folder name of a client name, one to one.

    Examples
    --------
    >>> safe_name("hospital-1"), safe_name("../x"), safe_name("..")
    ('hospital-1', '..%2Fx', '%2E%2E')
    """
    name = quote(client, safe=" ")
    return name.replace(".", "%2E") if re.fullmatch(r"\.*", name) else name
