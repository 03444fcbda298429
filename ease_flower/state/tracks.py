"""Names of the lines of models: one set a request, the first without a number."""

from collections.abc import Sequence
from dataclasses import dataclass

from ease_flower.state.store import Store

LATER = "later"  # account of the rounds after recovery, and of the reference's as many


@dataclass(frozen=True)
class Tracks:
    """The tracks of request `number`, from 0.

    Examples
    --------
    >>> Tracks(0).unlearn, Tracks(1).unlearn
    ('unlearn', 'unlearn-2')
    """

    number: int

    @property
    def retrain(self) -> str:
        """The reference that never saw what this request and earlier ones name."""
        return self._name("retrain")

    @property
    def unlearn(self) -> str:
        """Right after excision."""
        return self._name("unlearn")

    @property
    def recover(self) -> str:
        """The rounds after it."""
        return self._name("recover")

    def before(self, store: Store) -> tuple[str, int]:
        """Return track and round of the model the request found."""
        if self.number == 0:
            return "train", store.rounds_done("train")
        return Tracks(self.number - 1).after(store)

    def after(self, store: Store) -> tuple[str, int]:
        """Return track and round of the last model of the request."""
        track = self.recover if store.rounds_done(self.recover) else self.unlearn
        return track, store.rounds_done(track)

    def curve(self, store: Store, most: int = 9) -> Sequence[tuple[str, int]]:
        """Return the models after excision and after rounds of recovery, the last among them."""
        rounds = spaced(store.rounds_done(self.recover), most)
        return [(self.unlearn, 0), *((self.recover, rnd) for rnd in rounds)]

    def rounds_before(self, store: Store, trained: int) -> int:
        """Count the rounds that were trained before this request's recovery."""
        earlier = (Tracks(i).recover for i in range(self.number))
        return trained + sum(store.rounds_done(track) for track in earlier)

    def _name(self, phase: str) -> str:
        return phase if self.number == 0 else f"{phase}-{self.number + 1}"


def spaced(last: int, most: int) -> list[int]:
    """Choose about `most` of the rounds 1 to `last`: evenly, counted back from the last.

    Examples
    --------
    >>> spaced(3, 9), spaced(21, 9)
    ([1, 2, 3], [3, 6, 9, 12, 15, 18, 21])
    """
    return list(range(last, 0, -max(1, -(-last // most))))[::-1]


def phase_of(track: str) -> str:
    """Return the phase a track belongs to.

    Examples
    --------
    >>> phase_of("recover-2"), phase_of("train")
    ('recover', 'train')
    """
    return track.partition("-")[0]
