"""What a node has: its name, its pairs, and the stems of its pairs, kept for the process."""

import hashlib
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context
from numpy.typing import NDArray

from ease_flower.config import Config
from ease_flower.data.federation import ClientData, client_data, node_data
from ease_flower.errors import UserError
from ease_flower.metrics.evaluate import Embedded, embed
from ease_flower.model.adapters import AdapterSpace, space_of
from ease_flower.model.caching import StemCache, StemStore
from ease_flower.model.prepare import prepare
from ease_flower.model.towers import DualEncoder
from ease_flower.unlearning.requests import ForgetRequest, Rows, forget_rows

from .identity import client_name
from .memory import open_memory

MIN_OUTSIDE = 5  # held-out pairs of a class, below which all held-out pairs are taken
_stems = StemStore()
_embedded: dict[str, Embedded] = {}


class Node:
    """One client as the local work sees it.

    Parameters
    ----------
    context : flwr.app.Context
        Its run config is checked here, its node config says where the pairs are: ``data-path``
        on a deployed node, ``partition-id`` and ``num-partitions`` in simulation.
    """

    def __init__(self, context: Context) -> None:
        self.config = Config.from_run_config(context.run_config)
        self.name = client_name(context)
        self.memory = open_memory(context, self.config, self.name)
        if self.config.threads:
            torch.set_num_threads(self.config.threads)
        node = context.node_config
        if "data-path" in node:
            self.data = _node_data(self.config, str(node["data-path"]))
        elif "partition-id" in node and "num-partitions" in node:
            self.data = _client_data(
                self.config, int(node["partition-id"]), int(node["num-partitions"])
            )
        else:
            raise UserError(
                f"{self.name}: the node config needs data-path, the folder with captions and "
                "images (flower-supernode --node-config 'data-path=\"/data\"')"
            )

    @cached_property
    def encoder(self) -> DualEncoder:
        """The process's encoder, set to theta_0 of this run once a message."""
        return prepare(self.config)[0]

    @cached_property
    def space(self) -> AdapterSpace:
        """Names and shapes of the adapters."""
        return space_of(self.encoder)

    def stems(self, part: str) -> StemCache:
        """Return the stems of ``train``, ``holdout`` or ``distractors``."""
        return _stems.get(self.encoder, getattr(self.data, part), self.config.adapted_blocks)

    def forget_rows(self, requests: Sequence[str]) -> Rows:
        """Find the training pairs that any of some requests names; positions, ascending."""
        found = [
            forget_rows(ForgetRequest.parse(text), self.config, self.name, self.data.train)
            for text in requests
        ]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *found]))

    def training_stems(self, without: Sequence[str]) -> StemCache:
        """Return the stems of what the node trains on once some requests are carried out."""
        rows, stems = self.forget_rows(without), self.stems("train")
        if not len(rows):
            return stems
        kept = np.setdiff1d(np.arange(len(stems)), rows)
        if len(kept) < 2:
            raise UserError(f"{self.name}: {len(kept)} pairs are left to train on; 2 are needed")
        return stems.subset(kept)

    def outside(self, request: str) -> StemCache:
        """Return held-out pairs to compare forget pairs with.

        For a class: those of the class, if there are enough, because classes differ in how well
        they are matched.
        """
        stems, asked = self.stems("holdout"), ForgetRequest.parse(request)
        if asked.scope == "class":
            same = forget_rows(asked, self.config, self.name, self.data.holdout)
            if len(same) >= MIN_OUTSIDE:
                return stems.subset(same)
        return stems

    def distractors(self, adapters: Sequence[NDArray[Any]]) -> Embedded | None:
        """Embed the public pairs under these adapters, which the encoder must hold already.

        Simulated clients share them, so the last answer of the process is kept.
        """
        if not len(self.data.distractors):
            return None
        digest = hashlib.sha256(self.data.distractors.digest.encode())
        for array in adapters:
            digest.update(np.ascontiguousarray(array).tobytes())
        key = f"{self.encoder.spec.digest}{digest.hexdigest()}"
        if key not in _embedded:
            _embedded.clear()
            _embedded[key] = embed(self.encoder, self.stems("distractors"))
        return _embedded[key]


@lru_cache(maxsize=64)
def _client_data(config: Config, index: int, num_clients: int) -> ClientData:
    return client_data(config, index, num_clients)


@lru_cache(maxsize=4)
def _node_data(config: Config, folder: str) -> ClientData:
    return node_data(config, Path(folder))
