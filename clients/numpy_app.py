"""Drive a NumPyClient from Flower's Message API.

Only module-level functions are registered: Ray pickles the ClientApp for every call, and a
nested function would travel with copies of the module globals it uses, which silently empties
the caches of a process.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from ease_flower import protocol
from ease_flower.errors import DataError, UserError

from .identity import answer_identity, identity_mod

ClientFn = Callable[[Context], Any]
CLIENT_RAISED = 2  # Flower's error code for "the ClientApp raised"
logger = logging.getLogger("flwr")


def numpy_client_app(client_fn: ClientFn) -> ClientApp:
    """Wrap ``client_fn(context) -> NumPyClient`` (module level) as a ClientApp with a name."""
    app = ClientApp(mods=[identity_mod])
    app.train()(partial(_guarded, _fit, client_fn))
    app.evaluate()(partial(_guarded, _evaluate, client_fn))
    for name in protocol.HOLDER_CALLS:
        app.train(name)(partial(_guarded, partial(_ask_holder, name), client_fn))
    return answer_identity(app)


def _guarded(
    handler: Callable[[ClientFn, Message, Context], Message],
    client_fn: ClientFn,
    message: Message,
    context: Context,
) -> Message:
    """Answer with the reason of a failure, without what must stay on the node.

    Flower would send the exception's text, and a data error's text names files.
    """
    try:
        return handler(client_fn, message, context)
    except Exception as error:
        logger.exception("local work failed")
        return Message(Error(code=CLIENT_RAISED, reason=public_reason(error)), reply_to=message)


def public_reason(error: Exception) -> str:
    """Say what went wrong in words that may leave the node.

    Examples
    --------
    >>> public_reason(DataError("/data/jane-doe.jpg: truncated"))
    'DataError: the pairs of this client cannot be used; its own log says which and why'
    """
    kind = type(error).__name__
    if isinstance(error, DataError):
        return f"{kind}: the pairs of this client cannot be used; its own log says which and why"
    if isinstance(error, UserError):
        return f"{kind}: {error}"
    return f"{kind}: see this client's own log"


def _numpy_client(client_fn: ClientFn, context: Context) -> NumPyClient:
    client = client_fn(context)
    inner = getattr(client, "numpy_client", client)  # .to_client() keeps the original
    if not isinstance(inner, NumPyClient):
        raise TypeError(f"client_fn returned {type(client).__name__}, not a NumPyClient")
    return inner


def _call(message: Message) -> tuple[list[str], list[Any], dict[str, Any]]:
    record = message.content[protocol.ARRAYS]
    assert isinstance(record, ArrayRecord)
    config = dict(message.content.get(protocol.CONFIG, ConfigRecord()))
    return list(record.keys()), record.to_numpy_ndarrays(), config


def _fit(client_fn: ClientFn, message: Message, context: Context) -> Message:
    names, arrays, config = _call(message)
    if protocol.LOCK in message.content:
        # Kept for the rest of the run, so that U_mu travels once a client.
        context.state[protocol.LOCK] = message.content[protocol.LOCK]
        anchor = protocol.ANCHOR if protocol.ANCHOR in message.content else protocol.ARRAYS
        context.state[protocol.ANCHOR] = message.content[anchor]
    out, num_examples, metrics = _numpy_client(client_fn, context).fit(arrays, config)
    if len(out) != len(names):
        raise ValueError(f"fit returned {len(out)} arrays, expected {len(names)}")
    record = ArrayRecord(
        {n: Array(np.asarray(a, order="C")) for n, a in zip(names, out, strict=True)}
    )
    return _reply(message, num_examples, metrics, {protocol.ARRAYS: record})


def _evaluate(client_fn: ClientFn, message: Message, context: Context) -> Message:
    _, arrays, config = _call(message)
    loss, num_examples, metrics = _numpy_client(client_fn, context).evaluate(arrays, config)
    return _reply(message, num_examples, {"loss": float(loss), **metrics}, {})


def _ask_holder(name: str, client_fn: ClientFn, message: Message, context: Context) -> Message:
    """Call ``client.<name>(arrays, extra, config) -> arrays, num_examples, metrics``."""
    _, arrays, config = _call(message)
    method = getattr(_numpy_client(client_fn, context), name, None)
    if method is None:
        raise UserError(f"this client has no {name}(): it is left out of that step")
    given = message.content.get(protocol.EXTRA)
    extra = {k: a.numpy() for k, a in given.items()} if isinstance(given, ArrayRecord) else {}
    found, num_examples, metrics = method(arrays, extra, config)
    record = ArrayRecord({k: Array(np.asarray(a, order="C")) for k, a in found.items()})
    return _reply(message, num_examples, metrics, {protocol.RESULT: record})


def _reply(
    message: Message, num_examples: int, metrics: Mapping[str, Any], records: dict[str, ArrayRecord]
) -> Message:
    numbers, info = split_metrics(metrics)
    counted = MetricRecord({**numbers, protocol.NUM_EXAMPLES: int(num_examples)})
    content = RecordDict({**records, protocol.METRICS: counted})
    content[protocol.INFO] = ConfigRecord({**info})
    return Message(content, reply_to=message)


def split_metrics(
    metrics: Mapping[str, Any],
) -> tuple[dict[str, int | float], dict[str, str | bool | bytes]]:
    """Sort a NumPyClient's metrics into what a MetricRecord takes and the rest.

    A MetricRecord refuses NumPy scalars, bools, None and text.

    Examples
    --------
    >>> split_metrics({"loss": np.float32(0.5), "note": "ok", "done": True, "none": None})
    ({'loss': 0.5}, {'note': 'ok', 'done': True})
    """
    numbers: dict[str, int | float] = {}
    rest: dict[str, str | bool | bytes] = {}
    for key, value in metrics.items():
        plain = value.item() if isinstance(value, (np.generic, np.ndarray)) else value
        if isinstance(plain, (bool, str, bytes)):
            rest[key] = plain
        elif isinstance(plain, (int, float)):
            numbers[key] = plain
    return numbers, rest
