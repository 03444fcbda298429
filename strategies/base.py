"""Federated averaging of adapters that names clients, checks replies, records and resumes."""

import time
from collections.abc import Iterable, Sequence
from logging import INFO, WARNING

import numpy as np
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from ease_flower import protocol
from ease_flower.config import Config
from ease_flower.model.adapters import AdapterSpace
from ease_flower.state import Store
from ease_flower.state.tracks import phase_of

from .replies import Reply, adapter_record, read_reply, record_bytes, weighted_mean
from .roster import Roster

Theta = NDArray[np.float32]


class AdapterFedAvg(FedAvg):
    """FedAvg over the adapters of named clients; one committed round after another.

    Parameters
    ----------
    config : Config
    space : AdapterSpace
        Names and shapes of the adapters.
    store : Store
        Models, history and account are kept there; a round counts when it is committed.
    roster : Roster
        Who is connected.
    track : str
        Which line of models this is: ``train``, ``retrain`` or ``recover``.
    absent : iterable of str
        Clients that are never asked.
    record : bool
        Whether updates join the history.
    without : sequence of str
        Requests whose pairs clients leave out.
    """

    def __init__(
        self,
        config: Config,
        space: AdapterSpace,
        store: Store,
        roster: Roster,
        track: str,
        absent: Iterable[str] = (),
        record: bool = True,
        without: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.config, self.space, self.store, self.roster = config, space, store, roster
        self.track, self.absent, self.record = track, frozenset(absent), record
        self.without = list(without)
        self.history_offset = 0
        self._theta: Theta = np.zeros(0, np.float32)
        self._asked: dict[str, Message] = {}
        self._started = 0.0
        self._first_round = self._round = 0

    def run(self, grid: Grid, start: Theta, num_rounds: int) -> Theta:
        """Train the rounds that are not committed yet; return theta of the last.

        Parameters
        ----------
        start : ndarray of shape (d,)
            Theta before round 1 of this track.
        """
        self._first_round = self.store.rounds_done(self.track)
        theta = self.store.model(self.track) if self.store.has(self.track) else start
        missing = num_rounds - self._first_round
        if missing > 0:
            log(INFO, "[%s] rounds %d to %d", self.track, self._first_round + 1, num_rounds)
            self.start(
                grid, self._arrays(theta), num_rounds=missing, timeout=self.config.round_timeout_s
            )
            theta = self.store.model(self.track)
        return theta

    def summary(self) -> None:
        """Log what this strategy is."""
        log(INFO, "\t%s: track %s, never asked: %s", type(self).__name__, self.track, self.absent)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the adapters to every connected client that takes part."""
        self._round = rnd = self._first_round + server_round
        self._theta = self.space.flatten(arrays.to_numpy_ndarrays())
        names = self.roster.wait_for(
            lambda known: len(set(known) - self.absent) >= self.config.min_replies,
            f"round {rnd} needs {self.config.min_replies} besides {sorted(self.absent)}",
        )
        chosen = {name: node for name, node in names.items() if name not in self.absent}
        log(INFO, "[%s] round %d -> %s", self.track, rnd, ", ".join(chosen))
        self._started = time.monotonic()
        return self.messages(
            chosen,
            RecordDict({protocol.ARRAYS: arrays, protocol.CONFIG: self.round_config(rnd)}),
            MessageType.TRAIN,
        )

    def round_config(self, rnd: int) -> ConfigRecord:
        """Return what clients are told besides the adapters (a copy a round)."""
        return ConfigRecord(
            {
                "phase": phase_of(self.account),
                "without": self.without,
                "server-round": rnd + self.history_offset,
                protocol.CODE_DIGEST: protocol.code_digest(),
            }
        )

    def messages(
        self, chosen: dict[str, int], content: RecordDict, message_type: str
    ) -> list[Message]:
        """Address one content to named clients and remember who was asked."""
        out = [
            Message(self.content_for(name, content), dst_node_id=node, message_type=message_type)
            for name, node in chosen.items()
        ]
        self._asked = dict(zip(chosen, out, strict=True))
        for message in out:
            self.store.add_cost(self.account, bytes_down=_array_bytes(message.content))
        return out

    def content_for(self, client: str, content: RecordDict) -> RecordDict:
        """Return what one client is sent; a hook for what only some get."""
        return content

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Evaluate nothing between rounds; the evaluation phase does."""
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the usable replies, keep their updates, commit the round.

        Raises
        ------
        AggregationError
            If fewer than ``min-replies`` are usable; gives each client's reason.
        """
        rnd = self._first_round + server_round
        good, problems = self._sort_out(replies)
        for client, problem in sorted(problems.items()):
            log(WARNING, "[%s] round %d: dropped %s: %s", self.track, rnd, client, problem)
            self.store.manifest["dropped"].append(
                {"track": self.track, "round": rnd, "client": client, "reason": problem[:300]}
            )
        if len(good) < self.config.min_replies:
            reasons = "; ".join(f"{c}: {p}" for c, p in sorted(problems.items()))
            raise AggregationError(
                f"[{self.track}] round {rnd}: {len(good)} usable replies, "
                f"min-replies is {self.config.min_replies}. {reasons or 'nobody replied'}"
            )
        if self.record:
            for reply in good:
                self.store.history.append(
                    reply.client,
                    rnd + self.history_offset,
                    reply.num_examples,
                    reply.theta - self._theta,
                )
        self.took_part(good)
        theta = self.after_average(weighted_mean(good))
        self.store.put_model(self.track, rnd, theta)
        self.store.add_cost(
            self.account,
            rounds=1,
            bytes_up=sum(reply.nbytes for reply in good),
            client_seconds=sum(reply.seconds for reply in good),
        )
        self.store.commit()
        seconds = time.monotonic() - self._started
        log(INFO, "[%s] round %d: %d replies, %.1f s", self.track, rnd, len(good), seconds)
        return self._arrays(theta), MetricRecord({"replies": len(good)})

    def took_part(self, replies: list[Reply]) -> None:
        """Look at the usable replies of a round before they are averaged; a hook."""

    @property
    def account(self) -> str:
        """Where the present round's cost is booked; a hook."""
        return self.track

    def after_average(self, theta: Theta) -> Theta:
        """Change the average before it is committed; a hook."""
        return theta

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing is evaluated between rounds."""
        return None

    def _sort_out(self, replies: Iterable[Message]) -> tuple[list[Reply], dict[str, str]]:
        # Errors made by the SuperLink carry node id 1, so the request says who was meant.
        who = {m.metadata.message_id: client for client, m in self._asked.items()}
        nodes = {m.metadata.dst_node_id: client for client, m in self._asked.items()}
        good: dict[str, Reply] = {}
        problems = dict.fromkeys(self._asked, "no reply before round-timeout-s")
        for message in replies:
            client = who.get(message.metadata.reply_to_message_id) or nodes.get(
                message.metadata.src_node_id
            )
            if client is None or client in good:
                continue
            if message.has_error():
                problems[client] = str(message.error.reason or f"code {message.error.code}").strip()
                continue
            try:
                good[client] = read_reply(client, message.content, self.space)
                del problems[client]
            except ValueError as error:
                problems[client] = str(error)
        return [good[client] for client in sorted(good)], problems

    def _arrays(self, theta: Theta) -> ArrayRecord:
        return adapter_record(self.space, theta)


def _array_bytes(content: RecordDict) -> int:
    return sum(record_bytes(record) for record in content.array_records.values())
