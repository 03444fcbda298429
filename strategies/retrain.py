"""The retrain reference: the same recipe from the same start, without the forgotten pairs.

What every unlearning method is measured against, and what it must cost less than.
"""

from collections.abc import Iterable, Sequence

from flwr.serverapp import Grid

from ease_flower.config import Config
from ease_flower.model.adapters import AdapterSpace
from ease_flower.state import Store
from ease_flower.state.tracks import LATER

from .base import AdapterFedAvg, Theta
from .roster import Roster


class Retrain(AdapterFedAvg):
    """FedAvg from theta_0 on what is retained; its updates are not kept."""

    def __init__(
        self,
        config: Config,
        space: AdapterSpace,
        store: Store,
        roster: Roster,
        track: str,
        absent: Iterable[str],
        without: Sequence[str],
    ) -> None:
        super().__init__(config, space, store, roster, track, absent, record=False, without=without)

    def retrain(self, grid: Grid) -> Theta:
        """Run the rounds that are missing; return theta of the last."""
        rounds = self.config.rounds + self.config.later_rounds
        return self.run(grid, self.store.model("initial", 0), rounds)

    @property
    def account(self) -> str:
        """Rounds beyond the recipe's are no part of what retraining costs."""
        return self.track if self._round <= self.config.rounds else LATER
