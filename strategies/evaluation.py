"""Ask clients how a model does on their pairs; only numbers come back."""

import math
from collections.abc import Mapping, Sequence
from logging import WARNING
from typing import Any

from flwr.app import (
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.common.logger import log
from flwr.serverapp import Grid

from ease_flower import protocol
from ease_flower.config import Config
from ease_flower.data.federation import test_pairs
from ease_flower.metrics.evaluate import evaluate_public
from ease_flower.model.adapters import AdapterSpace, set_adapters
from ease_flower.model.caching import StemStore
from ease_flower.model.prepare import prepare

from .base import Theta
from .replies import adapter_record

RECALLS = ("r1", "r5", "r10")
_stems = StemStore(kept=2)


def evaluate_model(
    config: Config,
    space: AdapterSpace,
    theta: Theta,
    grid: Grid,
    nodes: Mapping[str, int],
    requests: Sequence[str],
) -> dict[str, Any]:
    """Measure one model on what is to be forgotten, what is retained, and public test pairs.

    Parameters
    ----------
    requests : sequence of str
        The one that is measured comes last; pairs of those before it belong to neither side.

    Returns
    -------
    dict
        ``forget_r1``, ``retain_r1``, ``test_r1`` (and 5, 10; percent), ``membership_auc``,
        ``membership_auc_se`` (forget pairs against held-out ones of the same client, averaged
        over holders by their forget pairs), ``gallery`` and ``n`` per part. What nobody could
        measure is None.
    """
    answers = list(_ask(config, space, theta, grid, nodes, requests).values())
    encoder, _ = prepare(config)
    stems = _stems.get(encoder, test_pairs(config), config.adapted_blocks)
    set_adapters(encoder, space.unflatten(theta))
    public = evaluate_public(encoder, stems)
    out: dict[str, Any] = {"gallery": {}, "n": {}}
    for part in ("forget", "retain"):
        held = [a for a in answers if a.get(f"num-{part}")]
        for k in RECALLS:
            out[f"{part}_{k}"] = _pooled(held, f"{part}-{k}", f"num-{part}")
        out["gallery"][part] = int(max((a["gallery"] for a in held), default=0))
        out["n"][part] = int(sum(a[f"num-{part}"] for a in held))
    for k in RECALLS:
        out[f"test_{k}"] = public[k]
    out["gallery"]["test"] = out["n"]["test"] = len(stems)
    attacked = [a for a in answers if "membership-auc" in a]
    out["membership_auc"] = _pooled(attacked, "membership-auc", "num-forget")
    out["membership_auc_se"] = _pooled_error(attacked, "membership-auc-se", "num-forget")
    out["n"]["holdout"] = int(sum(a["num-outside"] for a in attacked))
    return out


def _pooled(rows: Sequence[Mapping[str, float]], key: str, weight: str) -> float | None:
    """Average over clients, weighted by their number of pairs, in a fixed order."""
    total = sum(row[weight] for row in rows)
    return sum(row[key] * row[weight] for row in rows) / total if total else None


def _pooled_error(rows: Sequence[Mapping[str, float]], key: str, weight: str) -> float | None:
    """Return the standard error of the weighted mean of independent figures."""
    total = sum(row[weight] for row in rows)
    return math.sqrt(sum((row[key] * row[weight] / total) ** 2 for row in rows)) if total else None


def _ask(
    config: Config,
    space: AdapterSpace,
    theta: Theta,
    grid: Grid,
    nodes: Mapping[str, int],
    requests: Sequence[str],
) -> dict[str, dict[str, float]]:
    arrays = adapter_record(space, theta)
    told = ConfigRecord(
        {
            "phase": "evaluate",
            "request": requests[-1],
            "without": list(requests[:-1]),
            protocol.CODE_DIGEST: protocol.code_digest(),
        }
    )
    content = RecordDict({protocol.ARRAYS: arrays, protocol.CONFIG: told})
    messages = [
        Message(content, dst_node_id=node, message_type=MessageType.EVALUATE)
        for node in nodes.values()
    ]
    names = {node: name for name, node in nodes.items()}
    answers = {}
    for reply in grid.send_and_receive(messages, timeout=config.round_timeout_s):
        name = names.get(reply.metadata.src_node_id, "a node")
        if reply.has_error():
            log(WARNING, "[evaluate] %s: %s", name, reply.error.reason)
            continue
        record = reply.content[protocol.METRICS]
        assert isinstance(record, MetricRecord)
        answers[name] = {key: float(str(value)) for key, value in record.items()}
    return dict(sorted(answers.items()))
