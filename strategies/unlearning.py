"""The server's side of a request: attribute, split, calibrate, excise, displace, commit.

1. The two sides: the history (a client left), or what holders attribute to their forget pairs.
   Where a client left, the rounds' means are taken again without it.
2. GSD: which directions of the forget side no one else needs.
3. Calibration, where a holder can be asked: the smallest lambda at which its forget pairs can no
   longer be told from its held-out pairs.
4. Excision: theta_u = theta_T - lambda U_mu U_mu^T (theta_T - theta_0).
5. BKE by the holders, from theta_u; filtered, locked.
6. One commit; only then what is left of the forgotten side is deleted.
"""

from dataclasses import replace
from logging import INFO

import numpy as np
from flwr.common.logger import log

from ease_flower.config import Config
from ease_flower.errors import UserError
from ease_flower.model.adapters import AdapterSpace
from ease_flower.state import Store
from ease_flower.unlearning.attribution import Attribution, LowRank
from ease_flower.unlearning.excision import (
    Excision,
    Updates,
    add_displacement,
    attributed_updates,
    client_updates,
    decompose_updates,
    excise,
    retained_history,
)
from ease_flower.unlearning.reaverage import reaveraging
from ease_flower.unlearning.requests import ForgetRequest
from ease_flower.unlearning.subspace import remove

from .holders import Answer, Holders, note

STRENGTHS = np.linspace(0.0, 1.0, 5)  # lambdas that calibration tries


class Unlearning:
    """One request, carried out on the model of a track.

    Parameters
    ----------
    config, space, store
        As in `AdapterFedAvg`.
    request : ForgetRequest
    holders : Holders
        Who may be asked.
    base, track : str
        Track of theta_T, and the one theta_u is committed to.
    """

    def __init__(
        self,
        config: Config,
        space: AdapterSpace,
        store: Store,
        request: ForgetRequest,
        holders: Holders,
        base: str,
        track: str,
    ) -> None:
        self.config, self.space, self.store = config, space, store
        self.request, self.holders = request, holders
        self.base, self.track = base, track
        self.theta, self.origin = store.model(base), store.model("initial", 0)
        self.locked = store.basis() if "basis" in store.manifest else None  # earlier requests'

    def carry_out(self) -> None:
        """Compute and commit theta_u and U_mu.

        Raises
        ------
        UserError
            If nobody holds anything of the request.
        """
        store, config = self.store, self.config
        store.history.verify()
        parts: list[Attribution] = []
        if self.request.leavers:
            updates = client_updates(store.history, self.request.leavers)
            if config.reaverage:
                self._reaverage()
        else:
            parts = self._attributions()
            updates = attributed_updates(store.history, parts)
        excision = self._excise(updates)
        if excision.basis.shape[1] == 0:
            note(
                store,
                f"No direction of {self.request} is unique at delta = {config.delta:g}: nothing "
                "was removed. Its updates lie in what the others taught; raise delta or retrain.",
            )
        store.put_basis(excision.basis)
        store.put_model(self.track, 0, excision.theta.astype(np.float32))
        store.manifest["angles"] = excision.angles
        self._delete(parts)

    def _reaverage(self) -> None:
        """Give those who stay the shares they would have had, outside what is locked."""
        added = reaveraging(self.store.history, self.request.leavers)
        if added is None:
            return
        if self.locked is not None:
            added = remove(added, np.zeros_like(added), self.locked)
        for block in self._untouched():
            added[block] = 0.0
        self.theta = (self.theta + added).astype(self.theta.dtype)

    def _untouched(self) -> list[slice]:
        """Return the branches that are left as they were, for the ablation of one branch."""
        towers, chosen = self.space.blocks("tower"), self.config.excise_branches
        return [block for name, block in towers.items() if chosen not in ("both", name)]

    def _attributions(self) -> list[Attribution]:
        answers = self.holders.ask("attribute")
        for answer in answers:
            missing = int(answer.metrics.get("missing-rounds", 0))
            if missing:
                note(
                    self.store, f"{answer.client} no longer has {missing} of the rounds to replay."
                )
        found = [part for answer in answers if (part := read_attribution(answer, self.space.size))]
        if not found:
            raise UserError(
                f"forget = {', '.join(self.request.targets)!r}, scope = {self.request.scope!r}: "
                "no connected client holds any pair of it, or none could replay its rounds"
            )
        return found

    def _excise(self, updates: Updates) -> Excision:
        config, blocks = self.config, self.space.blocks(self.config.granularity)
        parts = decompose_updates(updates, config, blocks)
        kept = self._untouched()

        def excised(strength: float) -> Excision:
            chosen = replace(config, strength=strength)
            return excise(parts, blocks, self.theta, self.origin, chosen, self.locked, kept)

        strength, is_enough = self._calibrate(excised(1.0))
        out = excised(strength)
        if config.excise_steps and self.holders.nodes and not is_enough:
            out = add_displacement(out, parts, blocks, self._trajectories(out))
        new = out.basis.shape[1] - (0 if self.locked is None else self.locked.shape[1])
        found = sum(len(part.cosines) for part in parts.values())
        log(INFO, "[%s] %s: %d of %d directions", self.track, self.request, new, found)
        return out

    def _trajectories(self, excision: Excision) -> list[tuple[np.ndarray, float]]:
        """Ask for bilateral excision; each holder's path from theta_u, and its weight."""
        paths = []
        for answer in self.holders.ask("excise", excision.theta):
            path = read_low_rank(answer, "", self.space.size)
            if path is not None:
                paths.append((path.rows(), float(answer.num_pairs)))
                log(INFO, "[%s] %s: %d steps of BKE", self.track, answer.client, len(path))
        self.store.manifest["bilateral-steps"] = sum(len(path) for path, _ in paths)
        return paths

    def _calibrate(self, whole: Excision) -> tuple[float, bool]:
        """Choose lambda by what holders measure; the configured one if nobody can.

        Returns
        -------
        float, bool
            lambda, and whether it is known to suffice: then nothing is displaced as well.
        """
        chosen = self.config.strength
        if not self.config.calibrate:
            return self._record(chosen, "not calibrated: calibrate = false", []), False
        if not self.holders.nodes:
            why = "not calibrated: nobody who holds the pairs was asked"
            return self._record(chosen, why, []), False
        extra: dict[str, np.ndarray] = {
            "theta": self.theta.astype(np.float16),
            "removed": (self.theta - whole.theta).astype(np.float16),
            "strengths": STRENGTHS.astype(np.float32),
        }
        answers = self.holders.ask("calibrate", extra=extra)
        usable = [a for a in answers if a.arrays.get("auc", np.zeros(0)).shape == STRENGTHS.shape]
        if not usable:
            why = "not calibrated: no holder has pairs it held out"
            return self._record(chosen, why, []), False
        auc, error = pooled_auc(usable)
        strength = chance_strength(STRENGTHS, auc)
        curve = [
            {"strength": float(s), "auc": float(a), "se": float(e)}
            for s, a, e in zip(STRENGTHS, auc, error, strict=True)
        ]
        self._record(strength, f"calibrated with {len(usable)} holders", curve)
        return strength, bool(np.interp(strength, STRENGTHS, auc - error) <= 0.5)

    def _record(self, strength: float, how: str, curve: list[dict[str, float]]) -> float:
        log(INFO, "[%s] lambda = %.2f, %s", self.track, strength, how)
        self.store.manifest["calibration"] = {"strength": strength, "how": how, "curve": curve}
        return strength

    def _delete(self, parts: list[Attribution]) -> None:
        """Commit, without what would give the forgotten side away; then delete its files."""
        store = self.store
        leavers = self.request.leavers
        for name in leavers:
            erased = store.history.forget(name)
            log(INFO, "[%s] deleting %d updates of %s", self.track, erased, name)
        for part in parts:
            kept = retained_history(store.history, part)
            store.history.rewrite(part.client, kept, self.track)
        store.manifest["forgotten"] = sorted({*store.manifest["forgotten"], *leavers})
        store.prune(self.base)
        store.commit()
        store.history.sweep()


def read_attribution(answer: Answer, size: int) -> Attribution | None:
    """Read an answer to 'attribute'; None if it names no update or is of the wrong shape."""
    forget, rounds = read_low_rank(answer, "", size), answer.arrays.get("rounds")
    if forget is None or rounds is None or rounds.shape != (len(forget),):
        return None
    numbers = tuple(int(r) for r in rounds)
    retained = read_low_rank(answer, "retain-", size)
    return Attribution(answer.client, forget, numbers, retained, answer.num_pairs)


def read_low_rank(answer: Answer, prefix: str, size: int) -> LowRank | None:
    """Read ``coefficients`` (n, r) and ``directions`` (r, size); None if they do not fit."""
    c = answer.arrays.get(f"{prefix}coefficients")
    u = answer.arrays.get(f"{prefix}directions")
    if c is None or u is None or c.ndim != 2 or u.shape != (c.shape[1], size) or not len(c):
        return None
    return LowRank(c.astype(np.float64), u.astype(np.float64))


def pooled_auc(answers: list[Answer]) -> tuple[np.ndarray, np.ndarray]:
    """Average holders' AUCs by their number of forget pairs; the standard error with it."""
    weights = np.array([float(a.num_pairs) for a in answers])
    weights /= weights.sum()
    auc = np.array([a.arrays["auc"] for a in answers])
    error = np.array([a.arrays["se"] for a in answers])
    return weights @ auc, np.sqrt(np.square(weights) @ np.square(error))


def chance_strength(strengths: np.ndarray, auc: np.ndarray) -> float:
    """Return the lambda at which the AUC falls to 0.5, between those tried; the last if never.

    Examples
    --------
    >>> s = np.array([0.0, 0.5, 1.0])
    >>> chance_strength(s, np.array([0.7, 0.6, 0.4]))
    0.75
    >>> chance_strength(s, np.array([0.4, 0.3, 0.2])), chance_strength(s, np.array([0.9, 0.8, 0.7]))
    (0.0, 1.0)
    """
    below = np.flatnonzero(auc <= 0.5)
    if not len(below):
        return float(strengths[-1])
    i = int(below[0])
    if i == 0:
        return float(strengths[0])
    share = (auc[i - 1] - 0.5) / (auc[i - 1] - auc[i])
    return float(strengths[i - 1] + share * (strengths[i] - strengths[i - 1]))
