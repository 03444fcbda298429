"""Ask those who hold forget pairs, and take only answers that can be used."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from ease_flower import protocol
from ease_flower.config import Config
from ease_flower.model.adapters import AdapterSpace
from ease_flower.state import Store
from ease_flower.unlearning.requests import ForgetRequest

from .replies import adapter_record, record_bytes


@dataclass(frozen=True)
class Answer:
    """What a holder sent back: arrays, its number of forget pairs, other numbers."""

    client: str
    arrays: Mapping[str, NDArray[Any]]
    num_pairs: int
    metrics: Mapping[str, float]


class Holders:
    """The clients that may hold forget pairs of one request.

    Parameters
    ----------
    nodes : mapping of str to int
        Node of each client that may be asked.
    track : str
        Account that the bytes and seconds are booked to.
    without : sequence of str
        Requests carried out before.
    """

    def __init__(
        self,
        grid: Grid,
        config: Config,
        space: AdapterSpace,
        store: Store,
        nodes: Mapping[str, int],
        request: ForgetRequest,
        track: str,
        without: Sequence[str],
    ) -> None:
        self.grid, self.config, self.space, self.store = grid, config, space, store
        self.nodes, self.request, self.track = dict(nodes), request, track
        self.without = list(without)

    def ask(
        self,
        call: str,
        theta: NDArray[np.floating] | None = None,
        extra: Mapping[str, NDArray[Any]] | None = None,
    ) -> list[Answer]:
        """Send one call of `protocol.HOLDER_CALLS` to all; return usable answers by name.

        Without `theta` no adapters travel. What is wrong is noted for the report, and the rest
        goes on. Holders of nothing are not in the list, and are not asked again.
        """
        if not self.nodes:
            return []
        adapters = (
            ArrayRecord() if theta is None else adapter_record(self.space, theta.astype(np.float32))
        )
        content = RecordDict(
            {
                protocol.ARRAYS: adapters,
                protocol.EXTRA: ArrayRecord({k: Array(v) for k, v in (extra or {}).items()}),
                protocol.CONFIG: ConfigRecord(
                    {
                        "phase": call,
                        "request": str(self.request),
                        "without": self.without,
                        protocol.CODE_DIGEST: protocol.code_digest(),
                    }
                ),
            }
        )
        messages = [
            Message(content, dst_node_id=node, message_type=f"train.{call}")
            for node in self.nodes.values()
        ]
        down = sum(record_bytes(r) for r in content.array_records.values())
        self.store.add_cost(self.track, bytes_down=down * len(messages))
        names = {node: name for name, node in self.nodes.items()}
        answers, problems = [], dict.fromkeys(self.nodes, "no reply before round-timeout-s")
        for reply in self.grid.send_and_receive(messages, timeout=self.config.round_timeout_s):
            name = names.get(reply.metadata.src_node_id) or names.get(
                reply.metadata.dst_node_id, "a node"
            )
            try:
                answers.append(read_answer(name, reply))
                problems.pop(name, None)
            except ValueError as error:
                problems[name] = str(error)
        for name, problem in sorted(problems.items()):
            note(self.store, f"{name} did not take part in '{call}': {problem}")
        for answer in answers:
            self.store.add_cost(
                self.track,
                bytes_up=sum(a.nbytes for a in answer.arrays.values()),
                client_seconds=answer.metrics.get(protocol.CLIENT_SECONDS, 0.0),
            )
        found = sorted((a for a in answers if a.num_pairs), key=lambda a: a.client)
        self.nodes = {a.client: self.nodes[a.client] for a in found if a.client in self.nodes}
        log(INFO, "[%s] %s: answered by %s", self.track, call, ", ".join(self.nodes) or "nobody")
        return found


def read_answer(client: str, reply: Message) -> Answer:
    """Read a holder's reply.

    Raises
    ------
    ValueError
        With the client's reason, or if an array is not finite or the count is not one.
    """
    if reply.has_error():
        raise ValueError(str(reply.error.reason))
    record, metrics = reply.content.get(protocol.RESULT), reply.content.get(protocol.METRICS)
    if not isinstance(record, ArrayRecord) or not isinstance(metrics, MetricRecord):
        raise ValueError(f"needs {protocol.RESULT} and {protocol.METRICS}")
    arrays = {name: array.numpy() for name, array in record.items()}
    for name, value in arrays.items():
        if not np.isfinite(value).all():
            raise ValueError(f"{name} is not finite")
    num = metrics.get(protocol.NUM_EXAMPLES)
    if type(num) is not int or num < 0:
        raise ValueError(f"{protocol.NUM_EXAMPLES} = {num!r}: must be an integer from 0")
    numbers = {k: float(v) for k, v in metrics.items() if isinstance(v, (int, float))}
    return Answer(client, arrays, num, numbers)


def note(store: Store, text: str) -> None:
    """Keep a sentence for the report (committed with the next commit)."""
    store.manifest.setdefault("notes", []).append(text)
    log(WARNING, "%s", text)
