"""A Flower Grid within one process: messages go straight to a ClientApp.

For studies of many short runs, and for tests: no Ray, no SuperLink, one process's caches. The
figures are those of ``flwr run``: same messages, same strategies, same clients.
"""

import random
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Reply = Callable[[int, Message, Message], Message | None]
FIRST_NODE = 1000


class LocalGrid(Grid):
    """Nodes 1000, 1001, ... with partitions 0, 1, ...

    Parameters
    ----------
    app : ClientApp
    num_nodes : int
    run_config : mapping
        What the nodes are told.
    change_reply : callable, optional
        ``(partition, request, reply) -> reply``; None loses the reply.
    shuffle : int, optional
        Seed by which replies come in another order.
    """

    def __init__(
        self,
        app: ClientApp,
        num_nodes: int,
        run_config: Mapping[str, Any],
        change_reply: Reply | None = None,
        shuffle: int | None = None,
    ) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.app, self.change_reply = app, change_reply
        self.order = None if shuffle is None else random.Random(shuffle)
        self.sent: list[Message] = []
        self.contexts = {
            FIRST_NODE + i: Context(
                1,
                FIRST_NODE + i,
                {"partition-id": i, "num-partitions": num_nodes},
                RecordDict(),
                dict(run_config),
            )
            for i in range(num_nodes)
        }

    def set_run(self, run: Any) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Any:
        """There is no run of a SuperLink."""
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Refuse: deprecated in Flower, and not used."""
        raise AssertionError("deprecated in Flower; not used")

    def get_node_ids(self) -> list[int]:
        """Return the node ids."""
        return list(self.contexts)

    def get_nodes(self) -> list[NodeInfo]:
        """Return the nodes; none is registered under a name."""
        return [NodeInfo(node_id=i) for i in self.contexts]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Refuse: messages are answered at once."""
        raise AssertionError("not used")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Refuse: messages are answered at once."""
        raise AssertionError("not used")

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Hand every message to the app, one after the other; return the replies."""
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
                reply = self.change_reply(node - FIRST_NODE, message, reply)
            if reply is not None:
                out.append(reply)
        if self.order:
            self.order.shuffle(out)
        return out
