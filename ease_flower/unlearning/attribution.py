"""Which updates span the forget side when a client holds both: its updates are a mixture.

*Counterfactual replay*: the holder runs a round again without the forget pairs, from the same
adapters, with the same seed. eps = Delta - w' Delta~ is what those pairs added, with w' the
retained share of its weight. *Pseudo-updates*: the holder trains on the forget pairs alone, and
on as many retained ones, from theta_0. Either way only a few directions travel.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ease_flower.unlearning.subspace import Matrix, energy_coefficients


@dataclass(frozen=True)
class LowRank:
    """Updates as few directions: updates is about coefficients @ directions.

    Attributes
    ----------
    coefficients : ndarray of shape (n, r)
    directions : ndarray of shape (r, d)
        Orthonormal rows, in half precision on the wire.
    """

    coefficients: Matrix
    directions: Matrix

    def __len__(self) -> int:
        return len(self.coefficients)

    def rows(self, part: slice = slice(None)) -> Matrix:
        """Return some columns of the updates; ndarray of shape (n, part)."""
        return np.asarray(self.coefficients @ self.directions[:, part], dtype=np.float64)


@dataclass(frozen=True)
class Attribution:
    """A holder's answer: what its forget pairs added, and where.

    Attributes
    ----------
    client : str
    forget : LowRank
        Updates of the forget pairs.
    rounds : tuple of int
        Round of each row of `forget`; 0 for pseudo-updates.
    retained : LowRank or None
        Pseudo-updates of as many retained pairs.
    num_pairs : int
        Forget pairs of the holder.
    """

    client: str
    forget: LowRank
    rounds: tuple[int, ...]
    retained: LowRank | None
    num_pairs: int


def low_rank(updates: Matrix, rank: int, energy: float = 0.99) -> LowRank:
    """Keep the strongest directions of some updates.

    Parameters
    ----------
    updates : ndarray of shape (n, d)
    rank : int
        Most directions.
    energy : float
        Share of the squared norm that suffices.

    Examples
    --------
    >>> m = np.array([[3.0, 0.0], [0.0, 0.1]])
    >>> low_rank(m, 1).rows().round(6)
    array([[3., 0.],
           [0., 0.]])
    """
    coefficients = energy_coefficients(updates @ updates.T, energy, rank)
    directions = coefficients.T @ updates
    return LowRank(updates @ directions.T, directions)


def counterfactual(
    update: NDArray[np.floating], without: NDArray[np.floating] | None, share: float
) -> Matrix:
    """Return what the forget pairs added to an update: eps = Delta - w' Delta~.

    Parameters
    ----------
    update, without : ndarray of shape (d,)
        Delta, and Delta~ of the replayed round; None if no pair was retained.
    share : float
        w', the retained share of the client's pairs.

    Examples
    --------
    >>> counterfactual(np.array([1.0, 2.0]), np.array([0.0, 2.0]), 0.5)
    array([1., 1.])
    """
    whole = np.asarray(update, dtype=np.float64)
    return whole if without is None else whole - share * without.astype(np.float64)


def replayed_rounds(rounds: list[int], every: int) -> list[int]:
    """Choose every n-th round, counted back from the last: late rounds hold most.

    Examples
    --------
    >>> replayed_rounds([1, 2, 3, 4, 5, 6, 7, 8], 3)
    [2, 5, 8]
    """
    return rounds[::-1][::every][::-1]
