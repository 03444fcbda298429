"""The retrain reference: the same recipe from the same start, without the forgotten client.

What every unlearning method is measured against, and what it must cost less than.
"""

from flwr.serverapp import Grid

from ease_flower.config import Config
from ease_flower.model.adapters import AdapterSpace
from ease_flower.state import Store

from .base import AdapterFedAvg, Theta
from .roster import Roster


class Retrain(AdapterFedAvg):
    """FedAvg from theta_0 over those who stay; its updates are not kept."""

    def __init__(
        self, config: Config, space: AdapterSpace, store: Store, roster: Roster, leaver: str
    ) -> None:
        super().__init__(config, space, store, roster, "retrain", [leaver], record=False)

    def retrain(self, grid: Grid) -> Theta:
        """Run the rounds that are missing; return theta of the last."""
        return self.run(grid, self.store.model("initial", 0), self.config.rounds)
