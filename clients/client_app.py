"""Flower's entry on a node."""

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client import Client

from ease_flower.errors import UserError
from ease_flower.protocol import HOLDINGS
from ease_flower.unlearning.requests import ForgetRequest, forget_rows

from .holder import Holder
from .node import Node
from .numpy_app import logger, numpy_client_app, public_reason


def client_fn(context: Context) -> Client:
    """Make the client of one message; what is dear is cached by the process."""
    return Holder(context).to_client()


app = numpy_client_app(client_fn)


@app.query("holdings")
def holdings(message: Message, context: Context) -> Message:
    """Say how many pairs this node has, or why it cannot take part; counts only."""
    try:
        node = Node(context)
        asked = forget_rows(ForgetRequest.of(node.config), node.config, node.name, node.data.train)
        record = ConfigRecord(
            {
                "train": len(node.data.train),
                "holdout": len(node.data.holdout),
                "forget": len(asked),
            }
        )
    except UserError as error:
        logger.error("%s", error)  # the whole text, with file names, stays here
        record = ConfigRecord({"problem": public_reason(error)})
    return Message(RecordDict({HOLDINGS: record}), reply_to=message)
