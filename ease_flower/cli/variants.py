"""What ``ease-flower ablate`` runs: every part of EASE switched off, every setting turned.

A variant is named ``scope/part`` and is the settings that differ from the given config.
"""

from collections.abc import Mapping, Sequence

from ease_flower.config import Config, Scalar

Settings = Mapping[str, Scalar]
SCOPES = ("client", "class", "sample")
LATER = 20  # rounds of training after recovery, for "does it come back?"
NO_LOCK: Settings = {"lock": "none", "project": False}
NOTHING_REMOVED: Settings = {"strength": 0.0, "reaverage": False}
BKE: Settings = {**NOTHING_REMOVED, "forget-client-online": True, "calibrate": False}
PARTS: dict[str, Settings] = {
    "full": {},
    "no GSD (all directions)": {"delta": 1.0},
    "no lock": {"lock": "none"},
    "no projection": {"project": False},
    "no lock, no projection": NO_LOCK,
    "image branch restored": {"excise-branches": "text"},
    "text branch restored": {"excise-branches": "image"},
    "delta 0.1": {"delta": 0.1},
    "delta 0.2": {"delta": 0.2},
    "delta 0.6": {"delta": 0.6},
    "pairwise retain span": {"retain-span": "pairwise"},
    "a layer at a time": {"granularity": "layer"},
    "no recovery": {"recover-rounds": 0},
}
CLIENT_PARTS: dict[str, Settings] = {
    "no re-averaging": {"reaverage": False},
    "recovery alone": NOTHING_REMOVED,
    "lambda 0": {"strength": 0.0},
    "lambda 0.5": {"strength": 0.5},
    "alpha 1": {"lock-alpha": 1.0},
    "alpha 100": {"lock-alpha": 100.0},
    "penalty lock": {"lock": "penalty"},
    "penalty lock, alpha 100": {"lock": "penalty", "lock-alpha": 100.0},
    "leaver online": {"forget-client-online": True},
    "leaver online, no calibration": {"forget-client-online": True, "calibrate": False},
    "BKE alone": BKE,
    "BKE alone, image branch": {**BKE, "excise-branches": "image"},
    "BKE alone, text branch": {**BKE, "excise-branches": "text"},
    "re-paired": {"pairing": "re-paired"},
}
HOLDER_PARTS: dict[str, Settings] = {
    "no calibration (lambda 1)": {"calibrate": False},
    "no BKE": {"excise-steps": 0},
    "pseudo-updates": {"attribution": "pseudo"},
    "replay": {"attribution": "replay"},
    "replay every 2nd": {"attribution": "replay", "replay-every": 2},
    "replay the last alone": {"attribution": "replay", "replay-every": 1000},
    "replay rank 1": {"attribution": "replay", "replay-rank": 1},
    "replay rank 16": {"attribution": "replay", "replay-rank": 16},
}


def requests(config: Config) -> dict[str, Settings]:
    """Return the request of each scope: a class the data has, and clients it simulates."""
    label = "star" if config.data == "scenes" else "dog"
    return {
        "client": {"scope": "client", "forget": "site-1"},
        "class": {"scope": "class", "forget": label},
        "sample": {"scope": "sample", "forget": "site-1,site-3"},
    }


def variants(scopes: Sequence[str], config: Config) -> dict[str, dict[str, Scalar]]:
    """List the variants of some scopes by name, with the settings that differ from `config`."""
    later: Settings = {"later-rounds": LATER}
    out: dict[str, dict[str, Scalar]] = {}
    for scope in scopes:
        parts = PARTS | (CLIENT_PARTS if scope == "client" else HOLDER_PARTS)
        parts |= {
            f"{LATER} rounds later": later,
            f"{LATER} rounds later, no lock, no projection": {**later, **NO_LOCK},
        }
        request = requests(config)[scope]
        out |= {f"{scope}/{name}": {**request, **part} for name, part in parts.items()}
    return out


def folder_name(variant: str) -> str:
    """Make a folder name of a variant's.

    Examples
    --------
    >>> folder_name("client/no lock, no projection")
    'client-no-lock-no-projection'
    """
    return "-".join("".join(c if c.isalnum() or c == "." else " " for c in variant).split())
