"""The NumPyClient: local LoRA-CLIP training with the forget lock, and evaluation."""

from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context
from flwr.client import NumPyClient
from numpy.typing import NDArray

from ease_flower import protocol
from ease_flower.errors import StaleCode, StateError
from ease_flower.metrics.evaluate import embed, evaluate_client
from ease_flower.model.adapters import get_adapters, set_adapters
from ease_flower.model.training import Lock, train_locally
from ease_flower.seeding import numpy_generator
from ease_flower.unlearning.packing import packed_digest, unpack_directions

from .node import Node

Arrays = list[NDArray[Any]]


class EaseClient(NumPyClient):
    """Trains and evaluates on one node's pairs; `Holder` adds what a forget request asks of it.

    Parameters
    ----------
    context : flwr.app.Context
        ``context.state`` keeps the forget lock for the rest of a run.
    """

    def __init__(self, context: Context) -> None:
        self.state = context.state
        self.node = Node(context)

    def fit(self, parameters: Arrays, config: dict[str, Any]) -> tuple[Arrays, int, dict[str, Any]]:
        """Train the adapters for the configured epochs.

        Parameters
        ----------
        parameters : list of ndarray
            Adapters of the server, in the order of the adapter space.
        config : dict
            ``server-round``, ``phase``, ``code-digest``, ``without`` (requests whose pairs are
            left out), and ``lock-digest`` while locked.

        Returns
        -------
        list of ndarray, int, dict
            Adapters, number of pairs, and ``loss``, ``client-seconds`` (training alone: the
            frozen stems are computed once and cost the same whatever is done afterwards), under
            a lock ``lock-push`` and ``lock-drift`` (see `Fit`).
        """
        check_code(config)
        encoder, rnd = self.node.encoder, int(config["server-round"])
        stems = self.node.training_stems(config.get("without", []))
        set_adapters(encoder, parameters)
        rng = numpy_generator(self.node.config.seed, "fit", self.node.name, rnd)
        recipe = self.node.config
        if config.get("phase") == "recover" and recipe.recover_epochs:
            recipe = replace(recipe, local_epochs=recipe.recover_epochs)
        started = perf_counter()
        fit = train_locally(encoder, stems, recipe, rng, self._lock(config))
        seconds = perf_counter() - started
        arrays = get_adapters(encoder)
        if config.get("phase") == "train":
            self.node.memory.keep(rnd, flatten(parameters), flatten(arrays))
        locked = {protocol.LOCK_PUSH: fit.push, protocol.LOCK_DRIFT: fit.drift}
        metrics = {"loss": fit.loss, "client-seconds": seconds, **locked}
        return arrays, len(stems), {k: v for k, v in metrics.items() if v is not None}

    def evaluate(
        self, parameters: Arrays, config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Measure a model on this node's pairs; numbers only, see `evaluate_client`."""
        check_code(config)
        encoder, request = self.node.encoder, str(config["request"])
        train, outside = self.node.stems("train"), self.node.outside(request)
        earlier = self.node.forget_rows(config.get("without", []))
        forget = np.setdiff1d(self.node.forget_rows([request]), earlier)
        set_adapters(encoder, parameters)
        metrics = evaluate_client(
            embed(encoder, train),
            forget,
            np.setdiff1d(np.arange(len(train)), np.union1d(forget, earlier)),
            embed(encoder, outside),
            self.node.distractors(parameters),
        )
        return 0.0, len(train), dict(metrics)

    def _lock(self, config: dict[str, Any]) -> Lock | None:
        digest = config.get(protocol.LOCK_DIGEST)
        if not digest or self.node.config.lock == "none":
            return None
        record, anchor = self.state.get(protocol.LOCK), self.state.get(protocol.ANCHOR)
        if not isinstance(record, ArrayRecord) or not isinstance(anchor, ArrayRecord):
            raise StateError("the forget lock was not received; the server sends it again")
        codes, steps = record["codes"].numpy(), record["steps"].numpy()
        if packed_digest(codes, steps) != digest:
            raise StateError("this client's forget lock is an older one; the server sends it again")
        theta_u = flatten(anchor.to_numpy_ndarrays())
        basis = unpack_directions(codes, steps, len(theta_u)).astype(np.float32)
        device = self.node.encoder.device
        return Lock(torch.from_numpy(basis).to(device), torch.from_numpy(theta_u).to(device))


def check_code(config: dict[str, Any]) -> None:
    """Refuse to work for a server of another version."""
    theirs, ours = config.get(protocol.CODE_DIGEST), protocol.code_digest()
    if theirs and theirs != ours:
        raise StaleCode(
            f"this node runs ease_flower {ours}, the server {theirs}: Flower's local daemon was "
            "started in another checkout, whose code it imports; stop the flower-superlink process "
            "and start it from a folder without ease_flower/, or use 'ease-flower run'"
        )


def flatten(arrays: Arrays) -> NDArray[np.float32]:
    """Lay adapter arrays end to end; shape (d,)."""
    return np.concatenate([np.asarray(a, dtype=np.float32).ravel() for a in arrays])
