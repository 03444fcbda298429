"""Excision of a client from the update history: nothing is asked of it, it may be gone."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ease_flower.config import Config
from ease_flower.errors import UserError
from ease_flower.state.history import History
from ease_flower.unlearning.subspace import (
    Matrix,
    Subspaces,
    decompose,
    orthonormalise,
    remove,
    retain_component,
)


@dataclass
class Excision:
    """What was found and removed, block by block.

    Attributes
    ----------
    basis : ndarray of shape (d, m)
        U_mu: the removed directions, orthonormal; locked from now on.
    theta : ndarray of shape (d,)
        theta_u, the adapters after excision.
    angles : list of dict
        Per block: cosines of the principal directions and which were removed.
    """

    basis: Matrix
    theta: Matrix
    angles: list[dict[str, object]] = field(default_factory=list)


def decompose_history(
    history: History, leavers: Sequence[str], config: Config, blocks: dict[str, slice]
) -> dict[str, Subspaces]:
    """Run GSD on the history, one block of theta at a time.

    Parameters
    ----------
    history : History
    leavers : sequence of str
        Clients to forget; everybody else is retained.
    blocks : dict of slice
        From `AdapterSpace.blocks`.

    Raises
    ------
    UserError
        If a leaver has no recorded update (the known are listed), or nobody would stay.
    """
    known = history.clients()
    unknown = [name for name in leavers if name not in known]
    if unknown:
        raise UserError(f"forget = {', '.join(unknown)}: no recorded update; known: {known}")
    staying = [name for name in known if name not in leavers]
    if not staying:
        raise UserError("forget names every client: nobody would be left to keep a model for")
    forget = [u for name in sorted(leavers) for u in history.of(name)]
    per_client = [history.of(name) for name in staying]
    retained = [u for updates in per_client for u in updates]

    def one_block(block: slice) -> Subspaces:
        def shifted(part: slice) -> slice:
            return slice(block.start + part.start, block.start + part.stop)

        return decompose(
            lambda part: history.read(forget, shifted(part)),
            lambda part: history.read(retained, shifted(part)),
            (len(forget), [len(updates) for updates in per_client]),
            block.stop - block.start,
            config.energy,
            config.rank_cap,
        )

    return {name: one_block(block) for name, block in blocks.items()}


def excise(
    parts: dict[str, Subspaces],
    blocks: dict[str, slice],
    theta: NDArray[np.floating],
    origin: NDArray[np.floating],
    config: Config,
) -> Excision:
    """Remove the leavers' unique directions from theta's displacement.

    theta_u = theta_T - lambda U_mu U_mu^T (theta_T - theta_0), block by block.

    Parameters
    ----------
    parts, blocks : dict
        From `decompose_history` and `AdapterSpace.blocks`, same keys.
    theta, origin : ndarray of shape (d,)
        theta_T and theta_0.
    """
    theta64, origin64 = theta.astype(np.float64), origin.astype(np.float64)
    out = theta64.copy()
    columns: list[Matrix] = []
    angles: list[dict[str, object]] = []
    for name, block in blocks.items():
        found = parts[name]
        removed = found.unique(config.delta, config.retain_span)
        basis = orthonormalise(found.directions[:, removed])
        out[block] = remove(theta64[block], origin64[block], basis, config.strength)
        whole = np.zeros((len(theta64), basis.shape[1]))
        whole[block] = basis
        columns.append(whole)
        angles.append(
            {
                "block": name,
                "cosines": [float(c) for c in found.cosines],
                "angles": [float(a) for a in found.angles],
                "removed": [bool(r) for r in removed],
            }
        )
    return Excision(np.concatenate(columns, axis=1), out, angles)


def add_displacement(
    excision: Excision, parts: dict[str, Subspaces], blocks: dict[str, slice], trajectory: Matrix
) -> Excision:
    """Apply a holder's bilateral excision: filtered by the retain support, then locked whole.

    Parameters
    ----------
    trajectory : ndarray of shape (steps, d)
        Displacements from theta_u after each local step; the last one is applied. The span of
        all of them joins U_mu, because a lock on the last alone is undone in recovery.
    """
    filtered = trajectory.T.astype(np.float64).copy()  # (d, steps)
    for name, block in blocks.items():
        filtered[block] -= retain_component(parts[name], filtered[block])
    basis = orthonormalise(np.concatenate([excision.basis, orthonormalise(filtered)], axis=1))
    return Excision(basis, excision.theta + filtered[:, -1], excision.angles)
