"""EASE: excise a client's unique directions, then recover under the forget lock.

Ding, Wu and Huang, "EASE: Federated Multimodal Unlearning via Entanglement-Aware Anchor
Closure", arXiv 2605.00733. The steps (in `ease_flower.unlearning`):

1. GSD on the update history: which directions of the leaver no one else needs.
2. Excision: theta_u = theta_T - lambda U_mu U_mu^T (theta_T - theta_0). Server only.
3. BKE, where the leaver is reachable and asked: both branches move away, filtered by the
   retain support; the whole trajectory joins U_mu.
4. PFL: recovery rounds by those who stay, locked on the client, projected after every
   aggregation on the server.
"""

from logging import INFO, WARNING

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError
from numpy.typing import NDArray

from ease_flower import protocol
from ease_flower.config import Config
from ease_flower.model.adapters import AdapterSpace
from ease_flower.state import Store
from ease_flower.unlearning import add_displacement, decompose_history, excise
from ease_flower.unlearning.packing import pack_directions, packed_digest
from ease_flower.unlearning.subspace import remove

from .base import AdapterFedAvg, Theta
from .replies import adapter_record, record_bytes
from .roster import Roster


class Ease(AdapterFedAvg):
    """The recovery rounds of EASE: FedAvg outside U_mu.

    Parameters
    ----------
    config, space, store, roster
        As in `AdapterFedAvg`; the store holds theta_u (track ``unlearn``) and U_mu.
    leaver : str
        The forgotten client; it is never asked again.
    """

    def __init__(
        self, config: Config, space: AdapterSpace, store: Store, roster: Roster, leaver: str
    ) -> None:
        super().__init__(config, space, store, roster, "recover", [leaver], record=True)
        self.history_offset = config.rounds
        self.anchor = store.model("unlearn").astype(np.float64)
        self.basis = store.basis()
        codes, steps = pack_directions(self.basis)
        self._lock = ArrayRecord({"codes": Array(codes), "steps": Array(steps)})
        self._digest = packed_digest(codes, steps)
        self._locked: set[str] = set()

    def recover(self, grid: Grid) -> Theta:
        """Run the recovery rounds that are missing; return theta of the last."""
        return self.run(grid, self.store.model("unlearn"), self.config.recover_rounds)

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
        anchor = self.anchor.astype(np.float32)
        if not np.array_equal(self._theta, anchor):
            out[protocol.ANCHOR] = adapter_record(self.space, anchor)
        return RecordDict(out)

    def took_part(self, clients: set[str]) -> None:
        """Remember who has the lock: those whose reply was usable."""
        self._locked |= clients

    def after_average(self, theta: Theta) -> Theta:
        """Take away what the round moved along U_mu."""
        projected = remove(theta.astype(np.float64), self.anchor, self.basis)
        return projected.astype(np.float32)

    def _is_locked(self) -> bool:
        return self.config.lock != "none" and self.basis.shape[1] > 0


def unlearn(
    config: Config, space: AdapterSpace, store: Store, roster: Roster, grid: Grid, leaver: str
) -> None:
    """Excise a client, commit theta_u and U_mu, and delete the client's updates.

    Does nothing if it is already done: the manifest says so.
    """
    if store.has("unlearn"):
        log(INFO, "[unlearn] %s is excised already", leaver)
        store.history.sweep(leaver)
        return
    store.history.verify()
    blocks = space.blocks(config.granularity)
    parts = decompose_history(store.history, [leaver], config, blocks)
    excision = excise(parts, blocks, store.model("train"), store.model("initial", 0), config)
    if config.forget_client_online:
        trajectory = ask_to_excise(config, space, store, roster, grid, leaver, excision.theta)
        if trajectory is not None:
            excision = add_displacement(excision, parts, blocks, trajectory)
    found = sum(len(part.cosines) for part in parts.values())
    log(INFO, "[unlearn] %s: %d of %d directions", leaver, excision.basis.shape[1], found)
    if excision.basis.shape[1] == 0:
        note(
            store,
            f"No direction of {leaver} is unique at delta = {config.delta:g}: nothing was removed. "
            "Its updates lie in what the others taught; raise delta or retrain.",
        )
    store.put_basis(excision.basis)
    store.put_model("unlearn", 0, excision.theta.astype(np.float32))
    store.manifest["angles"] = excision.angles
    store.manifest["forgotten"] = sorted({*store.manifest["forgotten"], leaver})
    erased = store.history.forget(leaver)
    store.prune("train")
    store.commit()
    store.history.sweep(leaver)
    log(INFO, "[unlearn] deleted %d updates of %s", erased, leaver)


def ask_to_excise(
    config: Config,
    space: AdapterSpace,
    store: Store,
    roster: Roster,
    grid: Grid,
    leaver: str,
    theta: NDArray[np.float64],
) -> NDArray[np.float64] | None:
    """Ask the leaver for bilateral excision; None, with a note, if it does not answer rightly."""
    node = roster.refresh().get(leaver)
    if node is None:
        note(store, f"{leaver} is not connected: bilateral excision was asked for and not done.")
        return None
    arrays = adapter_record(space, theta.astype(np.float32))
    told = ConfigRecord({"phase": "excise", protocol.CODE_DIGEST: protocol.code_digest()})
    content = RecordDict({protocol.ARRAYS: arrays, protocol.CONFIG: told})
    message = Message(content, dst_node_id=node, message_type=protocol.TRAIN_EXCISE)
    replies = list(grid.send_and_receive([message], timeout=config.round_timeout_s))
    try:
        if not replies:
            raise AggregationError("no reply before round-timeout-s")
        if replies[0].has_error():
            raise AggregationError(str(replies[0].error.reason))
        record = replies[0].content[protocol.TRAJECTORY]
        metrics = replies[0].content[protocol.METRICS]
        assert isinstance(record, ArrayRecord)
        assert isinstance(metrics, MetricRecord)
        trajectory = record[protocol.TRAJECTORY].numpy().astype(np.float64)
        if trajectory.ndim != 2 or trajectory.shape[1] != space.size or not len(trajectory):
            raise AggregationError(f"trajectory of shape {trajectory.shape}")
        if not np.isfinite(trajectory).all():
            raise AggregationError("trajectory is not finite")
    except (AggregationError, AssertionError, KeyError) as error:
        log(WARNING, "[unlearn] bilateral excision by %s failed: %s", leaver, error)
        note(store, f"Bilateral excision by {leaver} was asked for and failed: {error}.")
        return None
    store.add_cost(
        "unlearn",
        bytes_down=record_bytes(arrays),
        bytes_up=record_bytes(record),
        client_seconds=float(str(metrics.get(protocol.CLIENT_SECONDS, 0.0))),
    )
    return trajectory


def note(store: Store, text: str) -> None:
    """Keep a sentence for the report (committed with the next commit)."""
    store.manifest.setdefault("notes", []).append(text)
    log(WARNING, "[unlearn] %s", text)
