"""Gradient subspace decomposition (GSD): which of a leaver's directions are theirs alone.

All of it is done on Gram matrices of updates, never on d x d ones, so that the history is read
twice in column blocks and never held (method: Bjorck and Golub 1973; the sine side for small
angles). float64 throughout.

d = adapter size, n = updates, r_f / r_r = rank of the forget / retain span.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise as adjacent

import numpy as np
from numpy.typing import NDArray

from ease_flower.errors import NotFinite

Matrix = NDArray[np.float64]
Rows = Callable[[slice], Matrix]  # reads some columns of stacked updates: (n, columns)

RANK_TOLERANCE = 1e-10  # on eigenvalues: a Gram matrix squares the condition number
BLOCK_ENTRIES = 1 << 23  # entries of a column block that is held at a time, 64 MB


@dataclass(frozen=True)
class Subspaces:
    """Principal directions of the forget span against the retain span, in one block.

    Attributes
    ----------
    directions : ndarray of shape (d, r_f)
        Orthonormal principal vectors p_i of the forget span, by descending cosine.
    cosines : ndarray of shape (r_f,)
        Cosine of each to the joint retain span; 0 where r_f > r_r leaves no partner.
    angles : ndarray of shape (r_f,)
        The principal angles in radians, in [0, pi/2], ascending; exact also near 0.
    pairwise : ndarray of shape (r_f,)
        Largest cosine of p_i to any single retained client's span.
    retain_rows, retain_coefficients : callable, ndarray of shape (n_r, r_r)
        The retain basis, implicitly: U_r = rows^T coefficients.
    """

    directions: Matrix
    cosines: Matrix
    angles: Matrix
    pairwise: Matrix
    retain_rows: Rows
    retain_coefficients: Matrix

    def unique(self, delta: float, retain_span: str = "joint") -> NDArray[np.bool_]:
        """Mark the directions that may be removed: cosine at most delta.

        With ``joint`` the removal costs any x of the retain span at most delta * ||x||, because
        principal vectors are biorthogonal. With ``pairwise`` (each client's span on its own,
        as the paper is said to do) more directions pass and that bound does not hold.
        """
        cosines = self.cosines if retain_span == "joint" else self.pairwise
        return cosines <= delta


def energy_coefficients(gram: Matrix, energy: float, cap: int) -> Matrix:
    """Turn a Gram matrix of updates into coefficients of an orthonormal basis of their span.

    Parameters
    ----------
    gram : ndarray of shape (n, n)
        M M^T for updates M of shape (n, d).
    energy : float
        Share of the squared Frobenius norm the basis keeps.
    cap : int
        Largest rank.

    Returns
    -------
    ndarray of shape (n, r)
        C with U = M^T C orthonormal; r = 0 for updates that are all zero.

    Examples
    --------
    >>> m = np.array([[3.0, 0.0], [0.0, 4.0]])
    >>> np.abs(m.T @ energy_coefficients(m @ m.T, 0.6, 9))
    array([[0.],
           [1.]])
    """
    if not np.isfinite(gram).all():
        raise NotFinite("the update history holds NaN or infinite entries")
    values, vectors = np.linalg.eigh(gram)
    values, vectors = values[::-1], vectors[:, ::-1]
    total = np.clip(values, 0, None).sum()
    if total <= 0:
        return np.zeros((len(gram), 0))
    kept = np.cumsum(np.clip(values, 0, None)) / total
    rank = min(int(np.searchsorted(kept, energy - 1e-12)) + 1, cap, len(values))
    rank = min(rank, int((values > RANK_TOLERANCE * values[0]).sum()))
    coefficients: Matrix = vectors[:, :rank] / np.sqrt(values[:rank])
    return coefficients


def column_blocks(num_rows: int, size: int) -> Iterator[slice]:
    """Cut columns so that a block of all rows stays below `BLOCK_ENTRIES`."""
    step = max(1, BLOCK_ENTRIES // max(1, num_rows))
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


def decompose(
    forget: Rows,
    retained: Rows,
    counts: tuple[int, Sequence[int]],
    size: int,
    energy: float = 0.99,
    rank_cap: int = 64,
) -> Subspaces:
    """Split the forget span by its principal angles to the joint retain span.

    Parameters
    ----------
    forget, retained : callable
        Give columns of the stacked updates, of shape (n_f, columns) and (n_r, columns).
    counts : tuple of int and sequence of int
        n_f, and how many of the n_r rows belong to each retained client, in order.
    size : int
        Number of columns, d.
    energy, rank_cap : float, int
        Rank of each client's basis.

    Notes
    -----
    Pass 1 accumulates the Gram matrix of all updates. Bases, principal vectors and cosines
    follow from it. Pass 2 materialises the r_f principal vectors, the only ones of length d
    that are ever held, and takes their sines from the residual (I - U_r U_r^T) p_i.
    """
    n_f, per_client = counts
    n = n_f + sum(per_client)
    gram = np.zeros((n, n))
    for part in column_blocks(n, size):
        rows = np.concatenate([forget(part), retained(part)])
        gram += rows @ rows.T
    c_f = energy_coefficients(gram[:n_f, :n_f], energy, rank_cap)
    g_r, g_rf = gram[n_f:, n_f:], gram[n_f:, :n_f]

    ends = np.cumsum([0, *per_client])
    clients = [slice(a, b) for a, b in adjacent(ends)]
    parts = [energy_coefficients(g_r[c, c], energy, rank_cap) for c in clients]
    stacked = np.zeros((len(g_r), sum(p.shape[1] for p in parts)))
    column = 0
    for client, part_c in zip(clients, parts, strict=True):
        stacked[client, column : column + part_c.shape[1]] = part_c
        column += part_c.shape[1]
    c_r = stacked @ energy_coefficients(stacked.T @ g_r @ stacked, 1.0, stacked.shape[1])

    w, cos, _ = np.linalg.svd((c_r.T @ g_rf @ c_f).T)  # U_f^T U_r = W cos(Theta) V^T
    cosines = np.zeros(c_f.shape[1])
    cosines[: len(cos)] = np.clip(cos, 0.0, 1.0)
    c_p = c_f @ w  # (n_f, r_f): p_i = U_f w_i
    inner = c_r.T @ g_rf @ c_p  # U_r^T P

    directions = np.empty((size, c_p.shape[1]))
    sines_squared = np.zeros(c_p.shape[1])
    for part in column_blocks(n, size):
        p = forget(part).T @ c_p
        residual = p - retained(part).T @ (c_r @ inner)
        directions[part] = p
        sines_squared += np.square(residual).sum(0)
    angles = np.arctan2(np.sqrt(sines_squared), cosines)
    pairwise = np.array(
        [np.linalg.norm(p.T @ g_rf[c] @ c_p, axis=0) for c, p in zip(clients, parts, strict=True)]
    ).max(0, initial=0.0)
    return Subspaces(directions, cosines, angles, np.clip(pairwise, 0, 1), retained, c_r)


def retain_component(subspaces: Subspaces, x: Matrix) -> Matrix:
    """Project columns onto the retain span: U_r U_r^T x, for x of shape (d, k)."""
    c_r = subspaces.retain_coefficients
    inner = np.zeros((c_r.shape[1], x.shape[1]))
    blocks = list(column_blocks(len(c_r), len(x)))
    for part in blocks:
        inner += c_r.T @ (subspaces.retain_rows(part) @ x[part])
    out = np.empty_like(x)
    for part in blocks:
        out[part] = subspaces.retain_rows(part).T @ (c_r @ inner)
    return out


def collateral(subspaces: Subspaces) -> Matrix:
    """Measure what removing the forget directions costs the retained updates.

    Returns
    -------
    ndarray of shape (r_f,)
        Entry i: the largest ||U^T x|| / ||x|| over retained updates x, where U holds all
        directions with a cosine at most that of direction i. Since principal vectors are
        biorthogonal it is at most that cosine, whatever their number, for x in the retain span
        (with energy < 1 a part of an update lies outside).
    """
    c_r, p = subspaces.retain_coefficients, subspaces.directions
    num = len(c_r)
    inner, squares = np.zeros((p.shape[1], num)), np.zeros(num)
    for part in column_blocks(num, len(p)):
        rows = subspaces.retain_rows(part)
        inner += p[part].T @ rows.T
        squares += np.square(rows).sum(1)
    moved = squares > 0
    shares = np.square(inner[:, moved]) / squares[moved]
    below = subspaces.cosines[:, None] >= subspaces.cosines[None, :]  # which go with direction i
    cost: Matrix = np.sqrt((below @ shares).max(1, initial=0.0))
    return cost


def orthonormalise(columns: Matrix) -> Matrix:
    """Return an orthonormal basis of the columns' span, dropping what depends on the rest."""
    if columns.shape[1] == 0:
        return columns
    u, s, _ = np.linalg.svd(columns, full_matrices=False)
    return u[:, s > 1e-8 * s[0]] if s[0] > 0 else u[:, :0]


def remove(theta: Matrix, origin: Matrix, basis: Matrix, strength: float = 1.0) -> Matrix:
    """Take the displacement's part in a subspace away: theta - s U U^T (theta - origin).

    Parameters
    ----------
    theta, origin : ndarray of shape (d,)
    basis : ndarray of shape (d, m)
        Orthonormal columns.
    strength : float
        lambda; 1 removes the part whole.

    Examples
    --------
    >>> remove(np.array([3.0, 5.0]), np.zeros(2), np.array([[1.0], [0.0]]), 0.5)
    array([1.5, 5. ])
    """
    return theta - strength * (basis @ (basis.T @ (theta - origin)))
