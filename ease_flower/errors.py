"""The few named errors; each message says what, where, what is allowed and what to do next."""

from collections.abc import Sequence


class UserError(ValueError):
    """Something a user gave cannot be used; the command line prints it without a stack trace."""


class DataError(UserError):
    """A data file, image, caption list or partition cannot be used."""


class InvalidInput(UserError):
    """Several things a user gave cannot be used; all of them are listed at once.

    Parameters
    ----------
    problems : sequence of str
        One line each: what, where, allowed values, what to do.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class StateError(UserError):
    """A state directory is missing, damaged or belongs to another model or recipe."""


class NotFinite(UserError):
    """A NaN or an infinity stands where a finite number has to."""


class NothingTrained(UserError):
    """A local fit left the adapters of a tower where they were (open-unlearning issue 178)."""


class StaleCode(UserError):
    """A node runs another version of the library than the server (Flower imports by path)."""
