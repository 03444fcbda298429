"""Atomic files: written beside their place, flushed to disk, then moved there."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ease_flower.errors import StateError

Array = NDArray[np.floating]


def write_bytes(path: Path, data: bytes) -> str:
    """Write a file atomically; return the SHA-256 of its bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    return hashlib.sha256(data).hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, keys sorted, so that equal values give equal bytes."""
    write_bytes(path, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read JSON; a damaged file is a `StateError` that names the place."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise StateError(
            f"{path}: not readable as JSON ({error}); restore it from a copy"
        ) from None


def write_tensors(path: Path, tensors: Mapping[str, Array]) -> str:
    """Write arrays as safetensors, atomically; return the SHA-256."""
    return write_bytes(path, save({k: np.ascontiguousarray(v) for k, v in tensors.items()}))


def read_tensor(path: Path, name: str, part: slice = slice(None)) -> Array:
    """Read (a part of) one array of a safetensors file without reading the rest."""
    try:
        with safe_open(path, framework="numpy") as file:
            array: Array = file.get_slice(name)[part]
            return array
    except (OSError, SafetensorError) as error:
        raise StateError(f"{path}: array {name!r} cannot be read ({error})") from None


def file_sha256(path: Path) -> str:
    """Hash a file in pieces."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    except OSError as error:
        raise StateError(f"{path}: cannot be read ({error})") from None
    return digest.hexdigest()
