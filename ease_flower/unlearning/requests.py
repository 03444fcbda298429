"""What somebody may ask to have forgotten, and which of a holder's pairs that is."""

from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ease_flower.config import Config
from ease_flower.data import Pairs
from ease_flower.data.captions import mentions
from ease_flower.errors import DataError, UserError
from ease_flower.seeding import numpy_generator

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class ForgetRequest:
    """One request.

    Attributes
    ----------
    scope : str
        ``client``: all that clients ever trained on. ``class``: every pair of a class, wherever
        it lies. ``sample``: listed pairs of some holders.
    targets : tuple of str
        Names of the clients; the one class; names of the holders.
    """

    scope: str
    targets: tuple[str, ...]

    @classmethod
    def of(cls, config: Config) -> "ForgetRequest":
        """Read the request of a run config."""
        if config.scope == "class":
            return cls("class", (config.forget.strip(),))
        names = sorted({name.strip() for name in config.forget.split(",")} - {""})
        return cls(config.scope, tuple(names))

    @classmethod
    def parse(cls, text: str) -> "ForgetRequest":
        """Read what `str` wrote.

        Examples
        --------
        >>> ForgetRequest.parse("sample: site-1, site-3")
        ForgetRequest(scope='sample', targets=('site-1', 'site-3'))
        """
        scope, _, targets = text.partition(": ")
        if scope == "class":
            return cls(scope, (targets,))
        return cls(scope, tuple(targets.split(", ")))

    @property
    def leavers(self) -> tuple[str, ...]:
        """Clients that leave: those of a client request, nobody otherwise."""
        return self.targets if self.scope == "client" else ()

    def __str__(self) -> str:
        """Write the request in one line, as the manifest keeps it."""
        return f"{self.scope}: {', '.join(self.targets)}"

    def check(self, clients: Collection[str]) -> None:
        """Refuse what cannot be done, before round 1.

        Raises
        ------
        UserError
            For an unknown client (the known are listed), or if nobody would stay.
        """
        found = request_problems(self, clients)
        if found:
            raise UserError("\n".join(found))


def request_problems(request: ForgetRequest, clients: Collection[str]) -> list[str]:
    """Say why a request cannot be carried out; empty if it can.

    Examples
    --------
    >>> request_problems(ForgetRequest("client", ("site1",)), ["site-0", "site-1"])
    ["forget = 'site1': no such client; did you mean 'site-1'? known: site-0, site-1"]
    >>> request_problems(ForgetRequest("client", ("a", "b")), ["a", "b"])
    ["forget = 'a, b': names every client; nobody would be left to keep a model for"]
    """
    if request.scope == "class":
        return []  # only holders know their classes
    found = []
    for name in request.targets:
        if name not in clients:
            near = get_close_matches(name, clients, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            known = ", ".join(sorted(clients))
            found.append(f"forget = {name!r}: no such client; {hint}known: {known}")
    if not found and request.scope == "client" and set(request.targets) >= set(clients):
        found.append(
            f"forget = {', '.join(request.targets)!r}: names every client; nobody would be left "
            "to keep a model for"
        )
    return found


def forget_rows(request: ForgetRequest, config: Config, name: str, pairs: Pairs) -> Rows:
    """Find a holder's pairs that a request names; done by the holder, positions stay with it.

    Parameters
    ----------
    request : ForgetRequest
    config : Config
        ``forget-file`` of a sample request: the holder's own list, an id a line; ``{client}``
        stands for its name. Without one a simulated holder draws ``forget-share`` of its pairs.
    name : str
        The holder.
    pairs : Pairs
        What it trains on.

    Returns
    -------
    ndarray of int
        Positions, ascending; empty if it holds nothing of the request.

    Raises
    ------
    DataError
        If the list is missing, empty, names an id twice, or one that is not here.
    """
    if request.scope == "class":
        label = request.targets[0]
        known = any(pairs.labels)
        hits = [
            pairs.labels[i] == label if known else mentions(pairs.captions[i], label)
            for i in range(len(pairs))
        ]
        return np.flatnonzero(hits)
    if name not in request.targets:
        return np.zeros(0, dtype=np.int64)
    if request.scope == "client":
        return np.arange(len(pairs))
    if not config.forget_file:
        num = round(config.forget_share * len(pairs))
        draw = numpy_generator(config.seed, "forget-share", name)
        return np.sort(draw.choice(len(pairs), num, replace=False))
    return _listed(Path(config.forget_file.replace("{client}", name)).expanduser(), pairs)


def _listed(path: Path, pairs: Pairs) -> Rows:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"forget-file {path}: cannot be read ({error})") from None
    ids = [line.strip() for line in lines if line.strip()]
    where = {name: i for i, name in enumerate(pairs.ids)}
    problems = [f"{i!r} is listed twice" for i in sorted({i for i in ids if ids.count(i) > 1})]
    problems += [f"{i!r} is no pair of this client" for i in ids if i not in where]
    if not ids:
        problems.append("it lists nothing")
    if problems:
        raise DataError(f"forget-file {path}: {'; '.join(problems[:5])}")
    return np.sort(np.array([where[i] for i in ids], dtype=np.int64))
