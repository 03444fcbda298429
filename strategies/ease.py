"""EASE's recovery: FedAvg by those who stay, outside what was removed.

Ding, Wu and Huang, "EASE: Federated Multimodal Unlearning via Entanglement-Aware Anchor
Closure", arXiv 2605.00733: projection with forget lock (PFL). Clients hold theta at theta_u
along U_mu while they train; after every aggregation the server takes out what is left of the
motion along U_mu. What comes before, `unlearning` does: GSD, excision and BKE.
"""

from collections.abc import Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from ease_flower import protocol
from ease_flower.config import Config
from ease_flower.model.adapters import AdapterSpace
from ease_flower.state import Store
from ease_flower.state.tracks import LATER, Tracks
from ease_flower.unlearning.packing import pack_directions, packed_digest
from ease_flower.unlearning.subspace import remove

from .base import AdapterFedAvg, Theta
from .replies import Reply, adapter_record
from .roster import Roster


class Ease(AdapterFedAvg):
    """The recovery rounds of EASE: FedAvg outside U_mu.

    Parameters
    ----------
    config, space, store, roster
        As in `AdapterFedAvg`; the store holds theta_u and U_mu.
    tracks : Tracks
        Names theta_u's track and this one.
    without : sequence of str
        Requests whose pairs no holder trains on any more.
    """

    def __init__(
        self,
        config: Config,
        space: AdapterSpace,
        store: Store,
        roster: Roster,
        tracks: Tracks,
        without: Sequence[str],
    ) -> None:
        absent = store.manifest["forgotten"]
        super().__init__(
            config, space, store, roster, tracks.recover, absent, record=True, without=without
        )
        self.history_offset = tracks.rounds_before(store, config.rounds)
        self._start = store.model(tracks.unlearn)
        self.anchor = self._start.astype(np.float64)
        self.basis = store.basis()
        codes, steps = pack_directions(self.basis)
        self._lock = ArrayRecord({"codes": Array(codes), "steps": Array(steps)})
        self._digest = packed_digest(codes, steps)
        self._locked: set[str] = set()

    def recover(self, grid: Grid) -> Theta:
        """Run the recovery and later rounds that are missing; return theta of the last."""
        rounds = self.config.recover_rounds + self.config.later_rounds
        return self.run(grid, self._start, rounds)

    @property
    def account(self) -> str:
        """Rounds beyond recovery are no part of what unlearning costs."""
        return self.track if self._round <= self.config.recover_rounds else LATER

    def round_config(self, rnd: int) -> ConfigRecord:
        """Tell clients which lock holds."""
        config = super().round_config(rnd)
        if self._is_locked():
            config[protocol.LOCK_DIGEST] = self._digest
        return config

    def messages(
        self, chosen: dict[str, int], content: RecordDict, message_type: str
    ) -> list[Message]:
        """Send U_mu along to clients that do not have it yet: once a client, not once a round."""
        self._needs_lock = set(chosen) - self._locked
        return super().messages(chosen, content, message_type)

    def content_for(self, client: str, content: RecordDict) -> RecordDict:
        """Add the lock where it is needed; theta_u too, unless it is what is being sent."""
        if not self._is_locked() or client not in self._needs_lock:
            return content
        out = {**content, protocol.LOCK: self._lock}
        if not np.array_equal(self._theta, self._start):
            out[protocol.ANCHOR] = adapter_record(self.space, self._start)
        return RecordDict(out)

    def took_part(self, replies: list[Reply]) -> None:
        """Remember who has the lock: those whose reply was usable; measure what it let through."""
        self._locked |= {reply.client for reply in replies}
        if not self.basis.shape[1]:
            return
        told = {
            name: [reply.metrics[key] for reply in replies if key in reply.metrics]
            for name, key in (("locked", protocol.LOCK_DRIFT), ("push", protocol.LOCK_PUSH))
        }
        drifts = [np.linalg.norm(self.basis.T @ (r.theta - self.anchor)) for r in replies]
        kept = self.store.manifest.setdefault("drift", {}).setdefault(self.track, {})
        kept[str(self._round)] = {"drift": float(max(drifts))} | {
            name: max(values)
            for name, values in told.items()
            if values and np.isfinite(values).all()
        }

    def after_average(self, theta: Theta) -> Theta:
        """Take away what the round moved along U_mu."""
        if not self.config.project:
            return theta
        projected = remove(theta.astype(np.float64), self.anchor, self.basis)
        return projected.astype(np.float32)

    def _is_locked(self) -> bool:
        return self.config.lock != "none" and self.basis.shape[1] > 0
