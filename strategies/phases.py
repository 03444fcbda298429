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
from ease_flower.state.tracks import Tracks
from ease_flower.unlearning.requests import ForgetRequest

from .base import AdapterFedAvg
from .ease import Ease
from .evaluation import evaluate_model
from .holders import Holders, note
from .reporting import write_reports
from .retrain import Retrain
from .roster import Roster
from .unlearning import Unlearning

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
        self.request = ForgetRequest.of(config)
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
        self.request.check(names)
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
                clients[name] = {key: record[key] for key in ("train", "holdout", "forget")}
        held = [int(str(counts.get("forget", 1))) for counts in clients.values()]
        if not problems and not sum(held):
            problems.append(
                f"forget = {self.config.forget!r}, scope = {self.request.scope!r}: no connected "
                "client holds a pair of it"
            )
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
        """Record the request as the next one; refuse to change one that was begun."""
        requests = self.store.manifest.setdefault("requests", [])
        asked: dict[str, Any] = {"request": str(self.request), "settings": self.config.request()}
        known = [entry["request"] for entry in requests]
        if asked["request"] in known:
            number = known.index(asked["request"])
            fixed = requests[number]["settings"]
            differ = [
                f"{k} = {fixed.get(k)!r}, not {v!r}"
                for k, v in asked["settings"].items()
                if fixed.get(k) != v
            ]
            if differ:
                raise StateError(
                    f"state-dir {self.store.root}: its request was made with {'; '.join(differ)}. "
                    "Go on with the same settings, or copy the directory as it was after 'train'"
                )
            if number < len(requests) - 1 or self._is_done(number):
                log(INFO, "%s: carried out already; nothing is excised again", self.request)
        else:
            if requests and not self._is_done(len(requests) - 1):
                raise StateError(
                    f"state-dir {self.store.root}: its request {known[-1]!r} is not finished; run "
                    "it to the end first"
                )
            self._check_request()
            requests.append(asked)
            number = len(requests) - 1
        requests[number]["rounds-after"] = self.config.recover_rounds + self.config.later_rounds
        self.tracks = Tracks(number)
        self.without = [entry["request"] for entry in requests[: number + 1]]

    def _check_request(self) -> None:
        gone = set(self.store.manifest["forgotten"]) & set(self.request.targets)
        if gone and self.request.scope != "class":
            raise UserError(
                f"forget = {', '.join(sorted(gone))}: forgotten before; who comes back does so "
                "under a new name"
            )
        if self.request.leavers:
            self.request.check(self.store.history.clients() or self.roster.refresh())

    def _is_done(self, number: int) -> bool:
        tracks = Tracks(number)
        wanted = self.store.manifest["requests"][number]["rounds-after"]
        done = int(self.store.rounds_done(tracks.recover))
        return self.store.has(tracks.unlearn) and done >= int(wanted)

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
        """Train the reference on what is retained."""
        absent = {*self.store.manifest["forgotten"], *self.request.leavers}
        track, without = self.tracks.retrain, self.without
        strategy = Retrain(self.config, self.space, self.store, self.roster, track, absent, without)
        strategy.retrain(self.grid)

    def unlearn(self) -> None:
        """Excise what the request names from the model."""
        if self.store.rounds_done("train") < self.config.rounds:
            raise UserError(
                f"phase = 'unlearn': {self.store.rounds_done('train')} of {self.config.rounds} "
                "training rounds are done in this state-dir; run phase 'train' first"
            )
        if self.store.has(self.tracks.unlearn):
            log(INFO, "[unlearn] %s is excised already", self.request)
            self.store.history.sweep()
            return
        nodes = self._present()
        asked = self.request.targets if self.request.scope != "class" else tuple(nodes)
        if self.request.leavers and not self.config.forget_client_online:
            asked = ()
        for name in sorted(set(asked) - set(nodes)):
            note(self.store, f"{name} is not connected: it was not asked for its part.")
        holders = Holders(
            self.grid,
            self.config,
            self.space,
            self.store,
            {name: nodes[name] for name in asked if name in nodes},
            self.request,
            self.tracks.unlearn,
            self.without[:-1],
        )
        base, _ = self.tracks.before(self.store)
        Unlearning(
            self.config, self.space, self.store, self.request, holders, base, self.tracks.unlearn
        ).carry_out()

    def recover(self) -> None:
        """Train on with those who stay, outside the removed directions."""
        if not self.store.has(self.tracks.unlearn):
            raise UserError("phase = 'recover': nothing was excised yet; run phase 'unlearn' first")
        Ease(self.config, self.space, self.store, self.roster, self.tracks, self.without).recover(
            self.grid
        )

    def evaluate(self) -> Path:
        """Measure all models in one go, and write metrics and report."""
        store, tracks = self.store, self.tracks
        if not store.has(tracks.unlearn):
            raise UserError("phase = 'evaluate': nothing was excised yet; run 'unlearn' first")
        self.roster.wait_for(lambda known: len(known) >= 1, "at least one is needed")
        nodes = self._present()
        if not self.config.evaluate_forgotten:
            for name in self.request.leavers:
                nodes.pop(name, None)
        measured = {"before": self._measure(tracks.before(store), nodes)}
        if store.has(tracks.retrain):
            rounds = store.rounds_done(tracks.retrain)
            measured["retrain"] = self._measure((tracks.retrain, rounds), nodes)
        curve = tracks.curve(store)
        along = [self._measure(key, nodes) | {"round": key[1]} for key in curve]
        basis, anchor = store.basis(), store.model(tracks.unlearn).astype(np.float64)
        for point, (track, rnd) in zip(along, curve, strict=True):
            moved = store.model(track, rnd).astype(np.float64) - anchor
            point["drift"] = float(np.linalg.norm(basis.T @ moved))
        measured["unlearned"] = along[-1]
        return write_reports(self.config, store, self.encoder, self.space, measured, along, tracks)

    def _present(self) -> dict[str, int]:
        """Return who is connected, without those that left by earlier requests."""
        gone = {*self.store.manifest["forgotten"]} - {*self.request.leavers}
        return {name: node for name, node in self.roster.refresh().items() if name not in gone}

    def _measure(self, key: tuple[str, int], nodes: dict[str, int]) -> dict[str, Any]:
        log(INFO, "[evaluate] %s, round %d", *key)
        theta = self.store.model(*key)
        return evaluate_model(self.config, self.space, theta, self.grid, nodes, self.without)
