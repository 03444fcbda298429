"""Who is connected, under which stable name."""

import time
from collections.abc import Callable, Collection
from logging import INFO, WARNING

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError

from ease_flower import protocol

QUERY_TIMEOUT_S = 30.0  # a dead node "online" for up to 60 s would block a longer one
POLL_S = 0.5


class Roster:
    """Maps names to nodes.

    A registered SuperNode's name wins over the name a node declares. Where two live nodes claim
    one name, the one registered last is taken: an unregistered node that was killed and started
    again is "online" twice for up to a minute.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
    wait_s : float
        Longest wait for clients to connect.
    """

    def __init__(self, grid: Grid, wait_s: float) -> None:
        self.grid, self.wait_s = grid, wait_s
        self.declared: dict[int, str] = {}
        self.registered: set[str] = set()
        self.num_simulated = 0

    def refresh(self) -> dict[str, int]:
        """Ask new nodes for their name; return name to node id of all that are connected."""
        nodes = list(self.grid.get_nodes())
        for node in nodes:
            if name := str(getattr(node, "name", "")):
                self.declared[node.node_id] = name
                self.registered.add(name)
        self._ask([node.node_id for node in nodes if node.node_id not in self.declared])
        newest: dict[str, tuple[str, int]] = {}
        for node in nodes:
            if node.node_id in self.declared:
                name = self.declared[node.node_id]
                stamp = (str(getattr(node, "registered_at", "")), node.node_id)
                if name in newest:
                    log(WARNING, "two live nodes call themselves %r: the last one is used", name)
                newest[name] = max(newest.get(name, stamp), stamp)
        return {name: node_id for name, (_, node_id) in sorted(newest.items())}

    def _ask(self, node_ids: list[int]) -> None:
        if not node_ids:
            return
        messages = [
            Message(RecordDict(), dst_node_id=i, message_type=protocol.QUERY_IDENTITY)
            for i in node_ids
        ]
        for reply in self.grid.send_and_receive(messages, timeout=QUERY_TIMEOUT_S):
            if reply.has_error():
                log(WARNING, "a node did not say its name: %s", reply.error.reason)
                continue
            record = reply.content[protocol.IDENTITY]
            assert isinstance(record, ConfigRecord)
            self.declared[reply.metadata.src_node_id] = str(record["client-name"])
            simulated = record.get("num-partitions", 0)
            if isinstance(simulated, int):
                self.num_simulated = max(self.num_simulated, simulated)

    def wait_for(self, enough: Callable[[Collection[str]], bool], what: str) -> dict[str, int]:
        """Wait until the connected names are enough (nodes register one after another).

        Raises
        ------
        AggregationError
            After `wait_s`; names who is connected.
        """
        deadline = time.monotonic() + self.wait_s
        while True:
            names = self.refresh()
            expected = self.num_simulated
            if enough(names) and len(names) >= expected:
                return names
            if time.monotonic() > deadline:
                raise AggregationError(
                    f"after {self.wait_s:.0f} s connected: {', '.join(names) or 'nobody'}; {what}. "
                    "Start the missing nodes, or raise wait-s"
                )
            log(INFO, "waiting for clients: %s connected", len(names))
            time.sleep(POLL_S)
