"""One run of the ServerApp: phases over one state directory, each resumed or skipped."""

from logging import INFO
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from ease_flower import protocol
from ease_flower.config import Config
from ease_flower.errors import InvalidInput, StateError, UserError
from ease_flower.model.adapters import get_adapters
from ease_flower.model.prepare import prepare
from ease_flower.state import Store
from ease_flower.unlearning import ForgetRequest

from .base import AdapterFedAvg
from .ease import Ease, unlearn
from .evaluation import evaluate_model
from .reporting import write_reports
from .retrain import Retrain
from .roster import Roster

QUERY_TIMEOUT_S = 600.0


class Run:
    """Everything the phases of one run share.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
    config : Config
    state_dir : Path
        Where the run keeps its state; continued if it holds some.

    Raises
    ------
    UserError
        Before round 1, with all that is wrong.
    """

    def __init__(self, grid: Grid, config: Config, state_dir: Path) -> None:
        self.grid, self.config = grid, config
        self.store = Store(state_dir)
        self.roster = Roster(grid, config.wait_s)
        self.leaver = config.forget
        self.encoder, self.space = prepare(config)
        self.clients: dict[str, Any] = {}
        if not self.store.manifest:
            self._check_clients()
        theta = self.space.flatten(get_adapters(self.encoder))
        digest = self.encoder.spec.digest
        self.store.open_as(config.backbone, digest, config.recipe(), theta)

    def _check_clients(self) -> None:
        """Ask every client what it holds, before round 1 of a new state directory."""
        needed = max(2, self.config.num_clients)
        names = self.roster.wait_for(lambda known: len(known) >= needed, f"needed: {needed}")
        ForgetRequest(self.config.scope, self.leaver).check(names)
        messages = [
            Message(RecordDict(), dst_node_id=node, message_type=protocol.QUERY_HOLDINGS)
            for node in names.values()
        ]
        who = {node: name for name, node in names.items()}
        problems: list[str] = []
        clients: dict[str, Any] = {}
        for reply in self.grid.send_and_receive(messages, timeout=QUERY_TIMEOUT_S):
            name = who.get(reply.metadata.src_node_id, "a node")
            if reply.has_error():
                clients[name] = {}  # a project's own client need not answer this query
                log(INFO, "%s does not say what it holds: %s", name, reply.error.reason)
                continue
            record = reply.content[protocol.HOLDINGS]
            assert isinstance(record, ConfigRecord)
            if "problem" in record:
                problems.append(f"{name}: {record['problem']!s}")
            else:
                clients[name] = {key: record[key] for key in ("train", "holdout")}
        if problems:
            raise InvalidInput(sorted(problems))
        self.clients = dict(sorted(clients.items()))

    def carry_out(self) -> Path | None:
        """Run the phases in order; return the report's path if one was written."""
        if self.clients:
            self.store.manifest["clients"] = self.clients
            self.store.manifest["num-simulated"] = self.roster.num_simulated
        report = None
        for phase in self.config.phases():
            if phase != "train":
                self._fix_request()
            report = getattr(self, phase)() or report
        return report

    def _fix_request(self) -> None:
        """Record the request; refuse another one, or other settings, in this directory."""
        asked = self.config.request()
        fixed = self.store.manifest.setdefault("request", asked)
        differ = [
            f"{k} = {fixed.get(k)!r}, not {v!r}" for k, v in asked.items() if fixed.get(k) != v
        ]
        if differ:
            raise StateError(
                f"state-dir {self.store.root}: its request was made with {'; '.join(differ)}. "
                "Go on with the same settings, or copy the directory as it was after 'train'"
            )

    def train(self) -> None:
        """Train with everybody, keeping every update."""
        if self.store.has("unlearn"):
            return
        absent = self.store.manifest["forgotten"]
        strategy = AdapterFedAvg(
            self.config, self.space, self.store, self.roster, "train", absent, record=True
        )
        strategy.run(self.grid, self.store.model("initial", 0), self.config.rounds)

    def retrain(self) -> None:
        """Train the reference without the leaver."""
        strategy = Retrain(self.config, self.space, self.store, self.roster, self.leaver)
        strategy.retrain(self.grid)

    def unlearn(self) -> None:
        """Excise the leaver from the model."""
        if self.store.rounds_done("train") < self.config.rounds:
            raise UserError(
                f"phase = 'unlearn': {self.store.rounds_done('train')} of {self.config.rounds} "
                "training rounds are done in this state-dir; run phase 'train' first"
            )
        unlearn(self.config, self.space, self.store, self.roster, self.grid, self.leaver)

    def recover(self) -> None:
        """Train on with those who stay, outside the removed directions."""
        if not self.store.has("unlearn"):
            raise UserError("phase = 'recover': nothing was excised yet; run phase 'unlearn' first")
        Ease(self.config, self.space, self.store, self.roster, self.leaver).recover(self.grid)

    def evaluate(self) -> Path:
        """Measure all models in one go, and write metrics and report."""
        if not self.store.has("unlearn"):
            raise UserError("phase = 'evaluate': nothing was excised yet; run 'unlearn' first")
        nodes = self.roster.wait_for(lambda known: len(known) >= 1, "at least one is needed")
        if not self.config.evaluate_forgotten:
            nodes.pop(self.leaver, None)
        models: dict[str, tuple[str, int]] = {"before": ("train", self.store.rounds_done("train"))}
        if self.store.has("retrain"):
            models["retrain"] = ("retrain", self.store.rounds_done("retrain"))
        done = self.store.rounds_done("recover")
        curve = [("unlearn", 0), *(("recover", rnd) for rnd in range(1, done + 1))]
        measured = {name: self._measure(key, nodes) for name, key in models.items()}
        along = [self._measure(key, nodes) | {"round": i} for i, key in enumerate(curve)]
        basis, anchor = self.store.basis(), self.store.model("unlearn").astype(np.float64)
        for point, (track, rnd) in zip(along, curve, strict=True):
            moved = self.store.model(track, rnd).astype(np.float64) - anchor
            point["drift"] = float(np.linalg.norm(basis.T @ moved))
        measured["unlearned"] = along[-1]
        return write_reports(self.config, self.store, self.encoder, self.space, measured, along)

    def _measure(self, key: tuple[str, int], nodes: dict[str, int]) -> dict[str, Any]:
        log(INFO, "[evaluate] %s, round %d", *key)
        theta = self.store.model(*key)
        return evaluate_model(self.config, self.space, theta, self.grid, nodes, self.leaver)
