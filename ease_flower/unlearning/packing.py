"""U_mu for the wire: 4 bits an entry, because it travels to every client that stays.

The client's lock only keeps drift small; the server's projection, in float64, is what removes
it. So a direction may arrive a few degrees off: a cosine of 0.99 to the true one.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from ease_flower.unlearning.subspace import Matrix

LEVELS = 7  # codes -7 ... 7, kept as 1 ... 15 in half a byte
CLIPS = np.linspace(1.5, 6.0, 10)  # in root mean squares of a column, where entries are cut off


def pack_directions(basis: Matrix) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Quantise orthonormal columns, each with the step that leaves the smallest error.

    Parameters
    ----------
    basis : ndarray of shape (d, m)

    Returns
    -------
    ndarray of shape (m, ceil(d / 2)), uint8
        Two entries a byte, the first in the low half.
    ndarray of shape (m,), float32
        Step of each column.
    """
    size, rank = basis.shape
    codes = np.zeros((rank, size + size % 2), dtype=np.uint8)
    steps = np.zeros(rank, dtype=np.float32)
    for j, column in enumerate(basis.T):
        tried = CLIPS * np.sqrt(np.mean(column**2)) / LEVELS
        errors = [np.sum((_levels(column, step) * step - column) ** 2) for step in tried]
        steps[j] = tried[int(np.argmin(errors))]
        codes[j, :size] = _levels(column, float(steps[j])) + LEVELS + 1
    return codes[:, ::2] | codes[:, 1::2] << 4, steps


def unpack_directions(
    packed: NDArray[np.uint8], steps: NDArray[np.float32], size: int
) -> NDArray[np.float64]:
    """Read packed columns and make them orthonormal again; ndarray of shape (size, m).

    Examples
    --------
    >>> basis = np.array([[0.6], [0.8], [0.0]])
    >>> unpack_directions(*pack_directions(basis), 3).round(1)
    array([[0.6],
           [0.8],
           [0. ]])
    """
    halves = np.stack([packed & 15, packed >> 4], axis=-1)
    codes = halves.reshape(len(packed), 2 * packed.shape[1])[:, :size]
    columns = ((codes.astype(np.float64) - LEVELS - 1) * steps[:, None]).T
    q, r = np.linalg.qr(columns)
    return np.asarray(q * np.sign(np.diag(r)), dtype=np.float64)


def packed_digest(packed: NDArray[np.uint8], steps: NDArray[np.float32]) -> str:
    """Hash packed directions, so that a client knows which ones are meant; 16 hex digits."""
    return hashlib.sha256(packed.tobytes() + steps.tobytes()).hexdigest()[:16]


def _levels(column: Matrix, step: float) -> NDArray[np.int64]:
    return np.clip(np.rint(column / step), -LEVELS, LEVELS).astype(np.int64)
