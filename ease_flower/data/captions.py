"""Karpathy JSON (Flickr8k, Flickr30k, COCO) with a folder of images; strict about both."""

import json
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ease_flower.data.images import open_rgb
from ease_flower.data.pairs import Pairs
from ease_flower.errors import DataError


def load_karpathy(path: Path, image_root: Path, split: str = "train") -> Pairs:
    """Read one split of a Karpathy JSON.

    Parameters
    ----------
    path : Path
        JSON with ``images``: ``filename``, perhaps ``filepath`` (COCO), ``split`` (``restval``
        counts as ``train``), ``sentences[].raw``, perhaps ``label``.
    image_root : Path
        Images lie there, or in ``filepath`` below it.

    Raises
    ------
    DataError
        Names file and entry: not JSON, no captions, a blank caption, a file named twice, a
        split that does not exist (those that do are listed).
    """
    entries = _entries(path)
    splits = Counter(
        "train" if e.get("split") == "restval" else str(e.get("split")) for e in entries
    )
    if split not in splits:
        known = ", ".join(f"{name} ({count})" for name, count in sorted(splits.items()))
        raise DataError(f"{path}: no image of split {split!r}; splits: {known}")
    chosen = [e for e in entries if split == e.get("split") or _rest(split, e)]
    names = [str(Path(str(e.get("filepath", ""))) / str(e["filename"])) for e in chosen]
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise DataError(f"{path}: {repeated[0]!r} occurs {Counter(names)[repeated[0]]} times")
    files = [_file(image_root, e) for e in chosen]
    return FilePairs(
        tuple(names),
        tuple(_captions(path, e) for e in chosen),
        tuple(str(e.get("label", "")) for e in chosen),
        lambda i: open_rgb(_on_disk(files[i])),
    ).with_files(files)


class FilePairs(Pairs):
    """Pairs whose images are files; knows their paths, so that they can be looked for."""

    files: Sequence[Path] = ()

    def with_files(self, files: Sequence[Path]) -> "FilePairs":
        """Remember the image files."""
        object.__setattr__(self, "files", tuple(files))
        return self


def check_images(pairs: Pairs) -> list[str]:
    """Say which image files are missing, without opening any; empty if none is."""
    missing = [f for f in getattr(pairs, "files", ()) if not _on_disk(f).is_file()]
    if not missing:
        return []
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return [f"missing image files: {', '.join(map(str, missing[:3]))}{more}; check data-root"]


def mentions(captions: Sequence[str], word: str, at_least: int = 3) -> bool:
    """Say whether at least so many captions of an image hold a word.

    Examples
    --------
    >>> mentions(["a dog", "the dog runs", "Dog!", "an animal", "it runs"], "dog")
    True
    """
    texts = [{w.strip(".,!?\"'").lower() for w in caption.split()} for caption in captions]
    return sum(word.lower() in text for text in texts) >= at_least


def _entries(path: Path) -> list[dict[str, Any]]:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path}: not JSON ({error})") from None
    entries = read.get("images") if isinstance(read, dict) else None
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{path}: no captions: needs a list 'images' with 'sentences' (Karpathy)")
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or not isinstance(entry.get("filename"), str):
            raise DataError(f"{path}: images[{number}] has no 'filename'")
    return entries


def _rest(split: str, entry: dict[str, Any]) -> bool:
    return split == "train" and entry.get("split") == "restval"


def _captions(path: Path, entry: dict[str, Any]) -> tuple[str, ...]:
    sentences = entry.get("sentences")
    raw = [s.get("raw") if isinstance(s, dict) else None for s in sentences or []]
    if not raw or not all(isinstance(text, str) and text.strip() for text in raw):
        raise DataError(f"{path}: image {entry['filename']!r} has no caption, or a blank one")
    return tuple(str(text).strip() for text in raw)


def _file(root: Path, entry: dict[str, Any]) -> Path:
    return root / str(entry.get("filepath", "")) / str(entry["filename"])


def _on_disk(path: Path) -> Path:
    """Find a file whose name was composed (NFC) or decomposed (NFD) by another system."""
    for form in ("NFC", "NFD"):
        other = path.with_name(unicodedata.normalize(form, path.name))
        if other.is_file():
            return other
    return path
