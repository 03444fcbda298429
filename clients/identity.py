"""A node's stable name, carried by every reply.

Flower's node id is random in every simulated run and new at every start of an unregistered
SuperNode, so it cannot say whose updates are whose. A registered SuperNode's name (seen by the
server alone) goes before the name that is given here, which is self-declared.
"""

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from ease_flower.protocol import IDENTITY, QUERY_IDENTITY


def client_name(context: Context) -> str:
    """Return ``client-name`` of the node config, or ``site-<partition-id>`` in simulation."""
    node = context.node_config
    if "client-name" in node:
        return str(node["client-name"])
    if "partition-id" in node:
        return f"site-{int(node['partition-id'])}"
    return f"node-{context.node_id}"


def identity_record(context: Context) -> ConfigRecord:
    """Return the record that says who replies, and of how many simulated clients it is one."""
    record = ConfigRecord({"client-name": client_name(context)})
    node = context.node_config
    if "data-path" not in node and "num-partitions" in node:
        record["num-partitions"] = int(node["num-partitions"])
    return record


def identity_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Add the name to every reply (a Flower mod, also for ClientApps that know nothing of us)."""
    if message.metadata.message_type == QUERY_IDENTITY:
        return answer(message, context)
    reply = call_next(message, context)
    if reply.has_content():
        reply.content[IDENTITY] = identity_record(context)
    return reply


def answer(message: Message, context: Context) -> Message:
    """Answer the identity query."""
    return Message(RecordDict({IDENTITY: identity_record(context)}), reply_to=message)


def answer_identity(app: ClientApp) -> ClientApp:
    """Register the identity query: only registered message types reach a mod."""
    app.query("ease_identity")(answer)
    return app
