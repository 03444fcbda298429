"""Ask clients how a model does on their pairs; only numbers come back."""

from collections.abc import Iterable, Mapping
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
    leaver: str,
) -> dict[str, Any]:
    """Measure one model on the leaver's, the others' and the public test pairs.

    Returns
    -------
    dict
        ``forget_r1``, ``retain_r1``, ``test_r1`` (and 5, 10; percent), ``membership_auc``,
        ``membership_auc_se`` (the leaver's pairs against its held-out ones), ``gallery`` and
        ``n`` per part. What nobody could measure is None.
    """
    answers = _ask(config, space, theta, grid, nodes)
    leavers = {name: a for name, a in answers.items() if name == leaver}
    others = {name: a for name, a in answers.items() if name != leaver}
    encoder, _ = prepare(config)
    stems = _stems.get(encoder, test_pairs(config), config.adapted_blocks)
    set_adapters(encoder, space.unflatten(theta))
    public = evaluate_public(encoder, stems)
    out: dict[str, Any] = {"gallery": {}, "n": {}}
    for part, held in (("forget", leavers), ("retain", others)):
        for k in RECALLS:
            out[f"{part}_{k}"] = _pooled(held.values(), k)
        out["gallery"][part] = int(max((a["gallery"] for a in held.values()), default=0))
        out["n"][part] = int(sum(a["num-queries"] for a in held.values()))
    for k in RECALLS:
        out[f"test_{k}"] = public[k]
    out["gallery"]["test"] = out["n"]["test"] = len(stems)
    mine = leavers.get(leaver, {})
    out["membership_auc"] = mine.get("membership-auc")
    out["membership_auc_se"] = mine.get("membership-auc-se")
    out["n"]["holdout"] = int(mine.get("num-holdout", 0))
    return out


def _pooled(answers: Iterable[Mapping[str, float]], key: str) -> float | None:
    """Average over clients, weighted by their queries, in a fixed order."""
    rows = list(answers)
    total = sum(row["num-queries"] for row in rows)
    return sum(row[key] * row["num-queries"] for row in rows) / total if total else None


def _ask(
    config: Config, space: AdapterSpace, theta: Theta, grid: Grid, nodes: Mapping[str, int]
) -> dict[str, dict[str, float]]:
    arrays = adapter_record(space, theta)
    told = ConfigRecord({"phase": "evaluate", protocol.CODE_DIGEST: protocol.code_digest()})
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
