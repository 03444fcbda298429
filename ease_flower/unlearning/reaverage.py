"""Re-averaging: what the rounds' means would have been had the leavers sent nothing.

FedAvg weighs a client by its share of the pairs. Without the leavers the shares of those who stay
grow, and so does what they teach: a retrained model fits them better than the original does.
Excision alone leaves their shares as they were.
"""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from ease_flower.state.history import History


def reaveraging(history: History, leavers: Collection[str]) -> NDArray[np.float64] | None:
    """Return what to add to the model: each round's mean without the leavers, less its mean.

    sum_t (sum_{k not in L} n_k Delta_k^t / sum_{k not in L} n_k - sum_k n_k Delta_k^t / sum_k n_k)
    over the recorded rounds; to first order, for the others' later updates answer to what the
    leavers sent. Rounds in which nobody else, or no leaver, took part add nothing.

    Returns
    -------
    ndarray of shape (d,), or None if no leaver took part in any round
    """
    total: NDArray[np.float64] | None = None
    for rnd in sorted({u.round for name in leavers for u in history.of(name)}):
        updates = sorted((u for u in history.updates if u.round == rnd), key=lambda u: u.client)
        whole = float(sum(u.weight for u in updates))
        staying = float(sum(u.weight for u in updates if u.client not in leavers))
        for update in updates if staying else []:
            share = 0.0 if update.client in leavers else update.weight / staying
            added = (share - update.weight / whole) * history.read([update])[0]
            total = added if total is None else total + added
    return total
