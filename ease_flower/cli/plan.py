"""What a run will cost, before anything runs."""

from typing import Any

from ease_flower.config import Config
from ease_flower.model.adapters import AdapterSpace, add_adapters
from ease_flower.model.backbones import load_architecture

FLOAT32 = 4
ARRAY_HEADER = 128  # bytes of the .npy header each array travels with


def plan(config: Config) -> dict[str, Any]:
    """Count rounds, bytes and history size from the config alone.

    Returns
    -------
    dict
        ``adapter-entries`` (d), rounds per phase, ``mb`` per phase (up and down, all clients),
        ``history-mb``, ``lock-mb`` (the most U_mu can add in recovery) and, as fractions of
        retraining, ``bytes-ratio`` and ``epochs-ratio``.
    """
    space = space_of(config)
    clients = max(config.num_clients, 2)
    stay = clients - 1
    one = (space.size * FLOAT32 + len(space.names) * ARRAY_HEADER) / 1e6
    most = min(config.rounds, config.rank_cap)
    lock = 0.0 if config.lock == "none" else stay * most * one / 8  # 4 bits an entry
    megabytes = {
        "train": 2 * clients * config.rounds * one,
        "retrain": 2 * stay * config.rounds * one if config.reference else 0.0,
        "recover": 2 * stay * config.recover_rounds * one + lock * bool(config.recover_rounds),
    }
    reference = 2 * stay * config.rounds * one
    return {
        "clients": clients,
        "adapter-entries": space.size,
        "rounds": {
            "train": config.rounds,
            "retrain": config.rounds if config.reference else 0,
            "recover": config.recover_rounds,
        },
        "client-rounds": clients * config.rounds
        + stay * (config.rounds * config.reference + config.recover_rounds),
        "mb": megabytes,
        "history-mb": clients * config.rounds * one,
        "lock-mb": lock,
        "bytes-ratio": megabytes["recover"] / reference,
        "epochs-ratio": config.recover_rounds
        * (config.recover_epochs or config.local_epochs)
        / (config.rounds * config.local_epochs),
    }


def space_of(config: Config) -> AdapterSpace:
    """Build the backbone's architecture, without its trained weights, to count adapters."""
    return add_adapters(load_architecture(config.backbone, config.adapted_blocks), config)
