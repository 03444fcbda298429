"""A Flower Grid in this process: a Strategy drives a ClientApp without Ray or a SuperLink."""

import random
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from clients.client_app import app as client_app
from ease_flower.config import Config
from strategies.phases import Run

Reply = Callable[[int, Message, Message], Message | None]


class InProcessGrid(Grid):
    """Nodes 1000, 1001, ... with partitions 0, 1, ...

    Parameters
    ----------
    run_config : dict
        What the nodes are told.
    change_reply : callable, optional
        ``(partition, request, reply) -> reply``; None loses the reply.
    shuffle : int, optional
        Seed by which replies come in another order.
    """

    def __init__(
        self,
        num_nodes: int,
        run_config: dict[str, Any],
        change_reply: Reply | None = None,
        shuffle: int | None = None,
        app: Any = client_app,
    ) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.app, self.change_reply = app, change_reply
        self.order = None if shuffle is None else random.Random(shuffle)
        self.sent: list[Message] = []
        self.contexts = {
            1000 + i: Context(
                1,
                1000 + i,
                {"partition-id": i, "num-partitions": num_nodes},
                RecordDict(),
                dict(run_config),
            )
            for i in range(num_nodes)
        }

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise AssertionError("deprecated in Flower; not used")

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=i) for i in self.contexts]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise AssertionError("not used")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise AssertionError("not used")

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        out = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
            self.sent.append(message)
            node = message.metadata.dst_node_id
            try:
                reply: Message | None = self.app(message, self.contexts[node])
            except Exception as error:
                reply = Message(Error(code=2, reason=repr(error)), reply_to=message)
            if self.change_reply and reply is not None:
                reply = self.change_reply(node - 1000, message, reply)
            if reply is not None:
                out.append(reply)
        if self.order:
            self.order.shuffle(out)
        return out


SMALL = {
    "num-clients": 3,
    "pairs-per-client": 12,
    "holdout-per-client": 8,
    "test-pairs": 16,
    "gallery": 16,
    "rounds": 3,
    "local-epochs": 1,
    "batch-size": 6,
    "lora-rank": 4,
    "adapted-blocks": 1,
    "wait-s": 0.0,
}


def simulate(state_dir: Path, grid_options: dict[str, Any] | None = None, **keys: Any) -> Run:
    """Run phases in this process; keys in snake_case override `SMALL`."""
    run_config = SMALL | {k.replace("_", "-"): v for k, v in keys.items()}
    run_config["state-dir"] = str(state_dir)
    config = Config.from_run_config(run_config)
    grid = InProcessGrid(config.num_clients, config.to_run_config(), **(grid_options or {}))
    run = Run(grid, config, state_dir)
    run.carry_out()
    return run
