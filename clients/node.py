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
from ease_flower.model.caching import StemCache, StemStore
from ease_flower.model.prepare import prepare
from ease_flower.model.towers import DualEncoder

from .identity import client_name

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

    def stems(self, part: str) -> StemCache:
        """Return the stems of ``train``, ``holdout`` or ``distractors``."""
        return _stems.get(self.encoder, getattr(self.data, part), self.config.adapted_blocks)

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
