"""Who holds which pairs: each client's, the server's public ones, and what all may see.

In simulation every client is cut from one source by its partition id. A deployed node reads its
own folder and nothing else.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ease_flower.config import Config
from ease_flower.data.captions import load_karpathy
from ease_flower.data.pairs import Pairs
from ease_flower.data.partition import partition, split_holdout
from ease_flower.data.scenes import scene_pairs
from ease_flower.errors import DataError
from ease_flower.seeding import derive

PUBLIC_SPLIT, TEST_SPLIT, CLIENT_SPLIT = "val", "test", "train"


@dataclass(frozen=True)
class ClientData:
    """A client's pairs: trained on, kept out of training, and public ones to search among."""

    train: Pairs
    holdout: Pairs
    distractors: Pairs


def client_data(config: Config, index: int, num_clients: int) -> ClientData:
    """Cut out the pairs of one simulated client.

    Parameters
    ----------
    index : int
        Partition id, from 0.
    num_clients : int
        Number of partitions; changes everybody's share.

    Raises
    ------
    DataError
        If there are too few images for so many clients; says how many are needed.
    """
    each = config.pairs_per_client + config.holdout_per_client
    source = _client_source(config, each * num_clients)
    shares = partition(
        source.labels,
        num_clients,
        each,
        derive(config.seed, "partition"),
        config.partition,
        config.dirichlet_alpha,
    )
    mine = source.subset(shares[index])
    data = _split(config, mine, config.holdout_per_client, _distractors(config))
    if config.pairing == "re-paired" and f"site-{index}" in config.forget.replace(" ", "").split(
        ","
    ):
        seed = derive(config.seed, "re-paired", index)
        return ClientData(
            data.train.re_paired(seed), data.holdout.re_paired(seed + 1), data.distractors
        )
    return data


def node_data(config: Config, folder: Path) -> ClientData:
    """Read a deployed node's own folder: a Karpathy JSON and its images.

    Pairs of the split ``train`` are the node's; a share of them is held out. Pairs of the split
    ``test``, if there are any, are public and only searched among.
    """
    path = captions_file(folder, "")
    mine = load_karpathy(path, image_folder(folder), CLIENT_SPLIT)
    try:
        public = load_karpathy(path, image_folder(folder), TEST_SPLIT)
    except DataError:
        public = mine.subset([])
    num_holdout = min(config.holdout_per_client, len(mine) // 3)
    room = max(0, config.gallery - (len(mine) - num_holdout))
    return _split(config, mine, num_holdout, public.subset(range(min(room, len(public)))))


def test_pairs(config: Config) -> Pairs:
    """Return the public pairs the server tests on."""
    if config.data == "scenes":
        return scene_pairs(config.test_pairs, derive(config.seed, "test") % 2**31)
    pairs = _karpathy(config, TEST_SPLIT)
    if len(pairs) < config.test_pairs:
        raise DataError(f"test-pairs = {config.test_pairs}: the test split has {len(pairs)} images")
    return pairs.subset(range(config.test_pairs))


test_pairs.__test__ = False  # type: ignore[attr-defined]  # pytest would take it for a test


def public_pairs(config: Config) -> Pairs | None:
    """Return captioned photos that anyone may see, to align ``mini``; None where not needed."""
    if config.backbone != "mini":
        return None
    if config.data == "scenes":
        return scene_pairs(2000, derive(0, "public") % 2**31, palette="public")
    return _karpathy(config, PUBLIC_SPLIT)


def captions_file(folder: Path, name: str) -> Path:
    """Find the Karpathy JSON: the one that is named, or the only JSON file of the folder."""
    if name:
        path = Path(name).expanduser()
        path = path if path.is_absolute() else folder / path
        if not path.is_file():
            raise DataError(f"captions = {name!r}: no such file: {path}")
        return path
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; data-root must hold the captions and images")
    found = sorted(folder.glob("*.json"))
    if len(found) != 1:
        names = ", ".join(p.name for p in found) or "none"
        raise DataError(f"{folder}: needs one JSON file with captions, found {names}; name it")
    return found[0]


def image_folder(folder: Path) -> Path:
    """Return ``folder/images`` if there is one, else the folder itself."""
    return folder / "images" if (folder / "images").is_dir() else folder


def _split(config: Config, mine: Pairs, num_holdout: int, distractors: Pairs) -> ClientData:
    train, holdout = split_holdout(
        list(range(len(mine))), num_holdout, derive(config.seed, "holdout")
    )
    return ClientData(mine.subset(train), mine.subset(holdout), distractors)


def _client_source(config: Config, needed: int) -> Pairs:
    if config.data == "scenes":
        return scene_pairs(needed, derive(config.seed, "clients") % 2**31)
    return _karpathy(config, CLIENT_SPLIT)


def _distractors(config: Config) -> Pairs:
    room = config.gallery - config.pairs_per_client
    if config.data == "scenes":
        return scene_pairs(room, derive(config.seed, "distractors") % 2**31)
    pairs = _karpathy(config, TEST_SPLIT)
    return pairs.subset(range(min(room, len(pairs))))


def _karpathy(config: Config, split: str) -> Pairs:
    return _load(config.data_root, config.captions, split)


@lru_cache(maxsize=3)
def _load(root: str, captions: str, split: str) -> Pairs:
    folder = Path(root).expanduser()
    return load_karpathy(captions_file(folder, captions), image_folder(folder), split)
