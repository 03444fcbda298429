"""Excision: from the two sides of a request to theta_u and U_mu.

A client request needs the history alone: nothing is asked of the leaver, it may be gone. A class
or sample request needs what the holders attribute to their forget pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ease_flower.config import Config
from ease_flower.errors import UserError
from ease_flower.state.history import History, Update
from ease_flower.unlearning.attribution import Attribution
from ease_flower.unlearning.subspace import (
    Matrix,
    Rows,
    Subspaces,
    collateral,
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
        Per block: cosines of the principal directions, which were removed, and what removing
        those up to each of them costs the retained updates.
    """

    basis: Matrix
    theta: Matrix
    angles: list[dict[str, object]] = field(default_factory=list)


@dataclass(frozen=True)
class Updates:
    """The two sides GSD splits, read in pieces.

    Attributes
    ----------
    forget, retained : callable
        Give columns of the stacked updates: (n_f, columns) and (n_r, columns).
    num_forget : int
        n_f.
    per_client : list of int
        Rows of each retained client, in order; their sum is n_r.
    """

    forget: Rows
    retained: Rows
    num_forget: int
    per_client: list[int]


def client_updates(history: History, leavers: Sequence[str]) -> Updates:
    """Take the two sides of a client request from the history.

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
    return Updates(
        lambda part: history.read(forget, part),
        lambda part: history.read(retained, part),
        len(forget),
        [len(updates) for updates in per_client],
    )


def attributed_updates(history: History, parts: Sequence[Attribution]) -> Updates:
    """Take the two sides of a class or sample request from holders' answers and the history.

    A holder's retained side is what it sent (pseudo-updates), or its update minus what the
    forget pairs added, for the rounds it replayed; its other updates are a mixture and left
    out. Clients that hold nothing of the request are retained whole.
    """
    held = {part.client for part in parts}
    others = [history.of(name) for name in history.clients() if name not in held]
    whole = [u for updates in others for u in updates]
    own = [(part, _retained_rows(history, part)) for part in sorted(parts, key=_client)]

    def forget(block: slice) -> Matrix:
        return np.concatenate([part.forget.rows(block) for part, _ in own])

    def retained(block: slice) -> Matrix:
        rows = [history.read(whole, block)] if whole else []
        rows += [read(block) for _, (read, count) in own if count]
        width = len(range(*block.indices(own[0][0].forget.directions.shape[1])))
        return np.concatenate(rows) if rows else np.zeros((0, width))

    counts = [len(u) for u in others if u] + [count for _, (_, count) in own if count]
    return Updates(forget, retained, sum(len(part.forget) for part, _ in own), counts)


def _client(part: Attribution) -> str:
    return part.client


def _retained_rows(history: History, part: Attribution) -> tuple[Rows, int]:
    if part.retained is not None:
        return part.retained.rows, len(part.retained)
    kept = {u.round: u for u in history.of(part.client)}
    found = [(kept[r], i) for i, r in enumerate(part.rounds) if r in kept]
    updates, where = [u for u, _ in found], [i for _, i in found]
    return lambda block: history.read(updates, block) - part.forget.rows(block)[where], len(found)


def retained_history(
    history: History, part: Attribution
) -> list[tuple[Update, NDArray[np.float64]]]:
    """Return what of a holder's updates may be kept once its forget pairs are forgotten.

    Replayed rounds without what the forget pairs added; the other rounds are a mixture and not
    in the list. With pseudo-updates every round, without its part along their directions.
    """
    kept = []
    for update in history.of(part.client):
        row = history.read([update])[0]
        if part.retained is not None:
            directions = part.forget.directions
            kept.append((update, row - (row @ directions.T) @ directions))
        elif update.round in part.rounds:
            added = part.forget.rows()[part.rounds.index(update.round)]
            kept.append((update, row - added))
    return kept


def decompose_updates(
    updates: Updates, config: Config, blocks: dict[str, slice]
) -> dict[str, Subspaces]:
    """Run GSD, one block of theta at a time (blocks from `AdapterSpace.blocks`)."""

    def one_block(block: slice) -> Subspaces:
        def shifted(part: slice) -> slice:
            return slice(block.start + part.start, block.start + part.stop)

        return decompose(
            lambda part: updates.forget(shifted(part)),
            lambda part: updates.retained(shifted(part)),
            (updates.num_forget, updates.per_client),
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
    locked: Matrix | None = None,
    kept: Sequence[slice] = (),
) -> Excision:
    """Remove the unique directions of the forget side from theta's displacement.

    theta_u = theta_T - lambda U_mu U_mu^T (theta_T - theta_0), block by block.

    Parameters
    ----------
    parts, blocks : dict
        From `decompose_updates` and `AdapterSpace.blocks`, same keys.
    theta, origin : ndarray of shape (d,)
        theta_T and theta_0.
    config : Config
        ``delta``, ``retain-span``, and ``strength``, which is lambda.
    locked : ndarray of shape (d, m0), optional
        U_mu of earlier requests: stays locked, and is not removed a second time.
    kept : sequence of slice
        Blocks that stay at theta_T all the same: one branch left as it was is the ablation.
    """
    theta64, origin64 = theta.astype(np.float64), origin.astype(np.float64)
    earlier = np.zeros((len(theta64), 0)) if locked is None else locked
    columns: list[Matrix] = []
    angles: list[dict[str, object]] = []
    for name, block in blocks.items():
        found = parts[name]
        removed = found.unique(config.delta, config.retain_span)
        whole = np.zeros((len(theta64), int(removed.sum())))
        whole[block] = found.directions[:, removed]
        columns.append(whole)
        angles.append(
            {
                "block": name,
                "cosines": [float(c) for c in found.cosines],
                "angles": [float(a) for a in found.angles],
                "removed": [bool(r) for r in removed],
                "collateral": [float(c) for c in collateral(found)],
            }
        )
    new = np.concatenate(columns, axis=1)
    basis = orthonormalise(new - earlier @ (earlier.T @ new))
    out = remove(theta64, origin64, basis, config.strength)
    for block in kept:
        out[block] = theta64[block]
    return Excision(np.concatenate([earlier, basis], axis=1), out, angles)


def add_displacement(
    excision: Excision,
    parts: dict[str, Subspaces],
    blocks: dict[str, slice],
    trajectories: Sequence[tuple[Matrix, float]],
) -> Excision:
    """Apply the holders' bilateral excision: filtered by the retain support, then locked whole.

    Parameters
    ----------
    trajectories : sequence of (ndarray of shape (steps, d), float)
        A holder's displacements from theta_u after each local step, and its weight; the mean of
        the last ones is applied. The span of all of them joins U_mu, because a lock on the last
        alone is undone in recovery.
    """
    used = [(path.T.astype(np.float64), weight) for path, weight in trajectories if len(path)]
    if not used:
        return excision
    total = sum(weight for _, weight in used)
    stacked = np.concatenate([path for path, _ in used], axis=1)  # (d, steps of all)
    for name, block in blocks.items():
        stacked[block] -= retain_component(parts[name], stacked[block])
    ends = np.cumsum([path.shape[1] for path, _ in used]) - 1
    shares = np.array([weight / total for _, weight in used])
    moved = stacked[:, ends] @ shares
    basis = orthonormalise(np.concatenate([excision.basis, orthonormalise(stacked)], axis=1))
    return Excision(basis, excision.theta + moved, excision.angles)
