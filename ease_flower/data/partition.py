"""Share images among clients: disjoint index sets of equal size, from a seed."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ease_flower.errors import DataError

Indices = NDArray[np.int64]


def partition(
    labels: Sequence[str],
    num_clients: int,
    per_client: int,
    seed: int,
    how: str = "iid",
    alpha: float = 0.5,
) -> list[Indices]:
    """Give every client the same number of images.

    Parameters
    ----------
    labels : sequence of str
        Class of each image.
    per_client : int
        Images of each client, at least 2: one pair alone has no negatives.
    how : str
        ``iid``; ``dirichlet``: each client draws its mix of classes from Dirichlet(alpha), takes
        what is left of them and fills up with others; ``class``: images sorted by class, cut.
    alpha : float
        Small: few classes a client. Large: all alike.

    Returns
    -------
    list of ndarray
        Disjoint positions, `per_client` each.

    Raises
    ------
    DataError
        If there are too few images, or per_client < 2.
    """
    needed = num_clients * per_client
    if per_client < 2:
        raise DataError(f"{per_client} pair a client: at least 2 are needed, to have a negative")
    if len(labels) < needed:
        raise DataError(
            f"{num_clients} clients x {per_client} images = {needed} are needed, "
            f"{len(labels)} are there; lower pairs-per-client, holdout-per-client or num-clients"
        )
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    if how == "iid":
        return list(order[:needed].reshape(num_clients, per_client))
    if how == "class":
        chosen = order[:needed]
        by_class = np.array([labels[i] for i in chosen])
        return list(chosen[np.argsort(by_class, kind="stable")].reshape(num_clients, per_client))
    if how == "dirichlet":
        return _dirichlet(labels, order, num_clients, per_client, alpha, rng)
    raise DataError(f"partition = {how!r}: allowed: 'iid', 'dirichlet', 'class'")


def _dirichlet(
    labels: Sequence[str],
    order: Indices,
    num_clients: int,
    per_client: int,
    alpha: float,
    rng: np.random.Generator,
) -> list[Indices]:
    classes = sorted(set(labels))
    left = {c: [int(i) for i in order if labels[i] == c] for c in classes}
    taken: list[list[int]] = []
    for _ in range(num_clients):
        wanted = rng.multinomial(per_client, rng.dirichlet([alpha] * len(classes)))
        mine: list[int] = []
        for c, count in zip(classes, wanted, strict=True):
            mine += left[c][:count]
            del left[c][:count]
        taken.append(mine)
    # Those who found a class used up are filled from what nobody took.
    spare = [i for c in classes for i in left[c]]
    spare = [spare[i] for i in rng.permutation(len(spare))]
    for mine in taken:
        missing = per_client - len(mine)
        mine += spare[:missing]
        del spare[:missing]
    return [np.array(mine, dtype=np.int64) for mine in taken]


def split_holdout(indices: Sequence[int], num_holdout: int, seed: int) -> tuple[Indices, Indices]:
    """Keep some images out of training.

    Returns
    -------
    ndarray, ndarray
        Training and held-out images, disjoint.

    Raises
    ------
    DataError
        If fewer than 2 would be left to train on.
    """
    if len(indices) - num_holdout < 2:
        raise DataError(
            f"{len(indices)} pairs, {num_holdout} of them held out: at least 2 must be left to "
            "train on"
        )
    shuffled = np.random.default_rng(seed).permutation(np.asarray(indices, dtype=np.int64))
    return shuffled[num_holdout:], shuffled[:num_holdout]
