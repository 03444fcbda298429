"""What a reply must be before it counts: pure checks, one problem each, named."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from ease_flower import protocol
from ease_flower.model.adapters import AdapterSpace


@dataclass(frozen=True)
class Reply:
    """A usable training reply."""

    client: str
    theta: NDArray[np.float32]
    num_examples: int
    seconds: float
    nbytes: int
    metrics: Mapping[str, float]


def read_reply(client: str, content: RecordDict, space: AdapterSpace) -> Reply:
    """Turn a message's content into a `Reply`.

    Raises
    ------
    ValueError
        Says what is wrong: names, shapes or dtype of the arrays, entries that are not finite, a
        count that is not a positive integer.
    """
    arrays, metrics = content.get(protocol.ARRAYS), content.get(protocol.METRICS)
    if not isinstance(arrays, ArrayRecord) or not isinstance(metrics, MetricRecord):
        raise ValueError(f"needs {protocol.ARRAYS} and {protocol.METRICS}, has {list(content)}")
    if tuple(arrays.keys()) != space.names:
        raise ValueError("array names differ from the global adapters")
    num_examples = metrics.get(protocol.NUM_EXAMPLES)
    if type(num_examples) is not int or num_examples <= 0:
        raise ValueError(f"{protocol.NUM_EXAMPLES} = {num_examples!r}: must be a positive integer")
    values = arrays.to_numpy_ndarrays()
    kinds = {value.dtype.name for value in values}
    if kinds != {"float32"}:
        raise ValueError(f"arrays are {', '.join(sorted(kinds))}: must be float32")
    theta = space.flatten(values)
    if not np.isfinite(theta).all():
        raise ValueError(f"{int((~np.isfinite(theta)).sum())} entries are not finite")
    seconds = metrics.get(protocol.CLIENT_SECONDS, 0.0)
    if not isinstance(seconds, (int, float)) or not 0 <= seconds < float("inf"):
        raise ValueError(
            f"{protocol.CLIENT_SECONDS} = {seconds!r}: must be finite and not negative"
        )
    numbers = {k: float(v) for k, v in metrics.items() if isinstance(v, (int, float))}
    return Reply(client, theta, num_examples, float(seconds), record_bytes(arrays), numbers)


def adapter_record(space: AdapterSpace, theta: NDArray[np.float32]) -> ArrayRecord:
    """Pack theta, of shape (d,), for the wire: one named array a module."""
    arrays = zip(space.names, space.unflatten(theta), strict=True)
    return ArrayRecord({name: Array(np.asarray(value, order="C")) for name, value in arrays})


def record_bytes(record: ArrayRecord) -> int:
    """Count the bytes of a record's arrays as they travel."""
    return sum(len(array.data) for array in record.values())


def weighted_mean(replies: list[Reply]) -> NDArray[np.float32]:
    """Average replies by their number of pairs.

    Sorted by client and summed in float64, so that the order of arrival cannot change a bit.

    Returns
    -------
    ndarray of shape (d,), float32
    """
    ordered = sorted(replies, key=lambda reply: reply.client)
    total = sum(reply.num_examples for reply in ordered)
    mean = np.zeros(ordered[0].theta.shape)
    for reply in ordered:
        mean += reply.theta.astype(np.float64) * (reply.num_examples / total)
    return mean.astype(np.float32)
