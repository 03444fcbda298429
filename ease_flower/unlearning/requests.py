"""What somebody may ask to have forgotten."""

from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches

from ease_flower.errors import UserError

SCOPES = ("client", "class", "sample")


@dataclass(frozen=True)
class ForgetRequest:
    """One request.

    Attributes
    ----------
    scope : str
        ``client``: all a client ever trained on. ``class`` and ``sample`` have their place here
        and are refused by `check` until holders can be asked to replay their rounds.
    target : str
        Name of the client; later the class, or the holder of the sample list.
    """

    scope: str
    target: str

    def check(self, clients: Collection[str]) -> None:
        """Refuse what cannot be done, before round 1.

        Raises
        ------
        UserError
            For an unknown client (the known are listed), a scope that is not supported, or a
            request that would leave nobody.
        """
        if self.scope not in SCOPES:
            raise UserError(f"scope = {self.scope!r}: allowed: {', '.join(SCOPES)}")
        if self.scope != "client":
            raise UserError(f"scope = {self.scope!r}: only 'client' is supported so far")
        problem = client_problem(self.target, clients)
        if problem:
            raise UserError(problem)


def client_problem(target: str, clients: Collection[str]) -> str | None:
    """Say why a client cannot be forgotten, or None.

    Examples
    --------
    >>> client_problem("site1", ["site-0", "site-1"])
    "forget = 'site1': no such client; did you mean 'site-1'? known: site-0, site-1"
    """
    if target not in clients:
        near = get_close_matches(target, clients, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return f"forget = {target!r}: no such client; {hint}known: {', '.join(sorted(clients))}"
    if len(clients) < 2:
        return f"forget = {target!r}: it is the only client; nobody would be left to keep a model"
    return None
