"""Flower's entry on a node."""

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client import Client

from ease_flower.errors import UserError
from ease_flower.protocol import HOLDINGS

from .ease_client import EaseClient
from .node import Node
from .numpy_app import numpy_client_app, public_reason


def client_fn(context: Context) -> Client:
    """Make the client of one message; what is dear is cached by the process."""
    return EaseClient(context).to_client()


app = numpy_client_app(client_fn)


@app.query("holdings")
def holdings(message: Message, context: Context) -> Message:
    """Say how many pairs this node has, or why it cannot take part; counts only."""
    try:
        data = Node(context).data
        record = ConfigRecord({"train": len(data.train), "holdout": len(data.holdout)})
    except UserError as error:
        record = ConfigRecord({"problem": public_reason(error)})
    return Message(RecordDict({HOLDINGS: record}), reply_to=message)
