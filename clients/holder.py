"""What a forget request asks of a client that still holds the pairs: three answers, no pairs.

``attribute``: which directions its forget pairs moved the model in. ``calibrate``: how well they
can still be told from pairs it never trained on. ``excise``: bilateral excision (BKE).
"""

from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ease_flower.metrics.evaluate import Embedded, embed, reference_auc
from ease_flower.model.adapters import AdapterSpace, get_adapters, set_adapters
from ease_flower.model.caching import StemCache
from ease_flower.model.replay import pseudo_updates, replay_round
from ease_flower.model.training import excise_locally
from ease_flower.seeding import numpy_generator
from ease_flower.unlearning.attribution import (
    counterfactual,
    low_rank,
    replayed_rounds,
)

from .ease_client import Arrays, EaseClient, check_code, flatten

Result = tuple[dict[str, NDArray[Any]], int, dict[str, Any]]
Extra = dict[str, NDArray[Any]]


class Holder(EaseClient):
    """A client that can be asked for its part in a forget request.

    Every method takes the adapters, further arrays, and the message's config with ``request``
    (text of a `ForgetRequest`) and ``without`` (requests carried out before); it returns arrays,
    the number of its forget pairs, and metrics with ``client-seconds``.
    """

    def attribute(self, parameters: Arrays, extra: Extra, config: dict[str, Any]) -> Result:
        """Find the directions in which the forget pairs moved the model.

        Returns
        -------
        dict, int, dict
            ``coefficients`` (n, r) and ``directions`` (r, d) of the updates of the forget pairs,
            ``rounds`` (n,) they belong to (0: pseudo); with pseudo-updates also those of as many
            retained pairs, ``retain-...``. Nothing if it holds no forget pair, or if none of its
            rounds is remembered: ``missing-rounds`` counts those.
        """
        check_code(config)
        forget = self.node.forget_rows([str(config["request"])])
        forget = np.setdiff1d(forget, self.node.forget_rows(config.get("without", [])))
        if not len(forget):
            return {}, 0, {"client-seconds": 0.0}
        started = perf_counter()
        kind = self.node.config.attribution
        found, missing = self._replay(forget) if kind == "replay" else self._pseudo(forget)
        seconds = perf_counter() - started
        return found, len(forget), {"client-seconds": seconds, "missing-rounds": missing}

    def calibrate(self, parameters: Arrays, extra: Extra, config: dict[str, Any]) -> Result:
        """Attack forget pairs, by their gain since theta_0, along theta - lambda * removed.

        Parameters
        ----------
        extra : dict
            ``theta`` and ``removed`` of shape (d,), in half precision: enough to measure with;
            ``strengths`` of shape (n,): the lambdas to try.

        Returns
        -------
        dict, int, dict
            ``auc`` and ``se`` of shape (n,); nothing without 2 forget and 2 held-out pairs.
        """
        check_code(config)
        request = str(config["request"])
        attack = self._attack(request)
        if attack is None:
            return {}, len(self.node.forget_rows([request])), {"client-seconds": 0.0}
        started = perf_counter()
        theta, removed = extra["theta"].astype(np.float32), extra["removed"].astype(np.float32)
        measured = [attack.at(theta - np.float32(s) * removed) for s in extra["strengths"]]
        found = np.array(measured, dtype=np.float64)
        seconds = perf_counter() - started
        return {"auc": found[:, 0], "se": found[:, 1]}, attack.num, {"client-seconds": seconds}

    def excise(self, parameters: Arrays, extra: Extra, config: dict[str, Any]) -> Result:
        """Displace the forget pairs in both branches (BKE), starting from theta_u.

        With ``calibrate`` it stops where they can no longer be told from held-out pairs.

        Returns
        -------
        dict, int, dict
            Displacements after each step, (steps, d), as ``coefficients`` (steps, r) and
            ``directions`` (r, d); nothing if no step was needed.
        """
        check_code(config)
        request, encoder = str(config["request"]), self.node.encoder
        rows = self.node.forget_rows([request])
        if len(rows) < 2:
            return {}, 0, {"client-seconds": 0.0}
        attack = self._attack(request) if self.node.config.calibrate else None
        set_adapters(encoder, parameters)
        rng = numpy_generator(self.node.config.seed, "excise", self.node.name)
        started = perf_counter()
        trajectory = excise_locally(
            encoder,
            self.node.stems("train").subset(rows),
            self.node.outside(request),
            self.node.config,
            rng,
            attack.is_chance if attack else lambda: False,
        )
        seconds = perf_counter() - started
        metrics = {"client-seconds": seconds}
        if not len(trajectory):
            return {}, len(rows), metrics
        path = low_rank(trajectory.numpy().astype(np.float64), self.node.config.replay_rank)
        return _packed("", path), len(rows), metrics

    def _replay(self, forget: NDArray[np.int64]) -> tuple[dict[str, NDArray[Any]], int]:
        node, memory = self.node, self.node.memory
        stems = node.training_stems([])
        wanted = replayed_rounds(list(range(1, node.config.rounds + 1)), node.config.replay_every)
        rounds = [rnd for rnd in wanted if rnd in memory.rounds()]
        share = 1 - len(forget) / len(stems)
        updates = []
        for rnd in rounds:
            received, returned = memory.read(rnd)
            rng = numpy_generator(node.config.seed, "fit", node.name, rnd)
            without = replay_round(
                node.encoder, self.node.space, stems, forget, node.config, rng, received
            )
            updates.append(counterfactual(returned - received, without, share))
        if not updates:
            return {}, len(wanted)
        found = low_rank(np.stack(updates), node.config.replay_rank)
        return _packed("", found) | {"rounds": np.array(rounds)}, len(wanted) - len(rounds)

    def _pseudo(self, forget: NDArray[np.int64]) -> tuple[dict[str, NDArray[Any]], int]:
        start = flatten(get_adapters(self.node.encoder))  # theta_0: nothing was received yet
        config, stems = self.node.config, self.node.stems("train")
        retained = np.setdiff1d(np.arange(len(stems)), forget)
        draw = numpy_generator(config.seed, "pseudo", self.node.name)
        alike = np.sort(draw.permutation(retained)[: len(forget)])
        rounds = len(replayed_rounds(list(range(config.rounds)), config.replay_every))
        out: dict[str, NDArray[Any]] = {"rounds": np.zeros(rounds, dtype=np.int64)}
        for prefix, rows in (("", forget), ("retain-", alike)):
            if len(rows) < 2:
                continue
            rng = partial(numpy_generator, config.seed, "pseudo", self.node.name, prefix)
            updates = pseudo_updates(
                self.node.encoder,
                self.node.space,
                stems.subset(rows),
                config,
                rng,
                start,
                rounds,
            )
            out |= _packed(prefix, low_rank(updates.astype(np.float64), config.replay_rank))
        return out, 0

    def _attack(self, request: str) -> "Attack | None":
        rows, outside = self.node.forget_rows([request]), self.node.outside(request)
        if len(rows) < 2 or len(outside) < 2:
            return None
        stems = self.node.stems("train").subset(rows)
        return Attack(self.node.encoder, self.node.space, stems, outside)


class Attack:
    """The membership attack of `reference_auc` on one holder's forget pairs."""

    def __init__(
        self, encoder: Any, space: AdapterSpace, forget: StemCache, outside: StemCache
    ) -> None:
        self.encoder, self.space = encoder, space
        self.sets = (forget, outside)
        self.num = len(forget)
        current = get_adapters(encoder)
        # With B = 0 every adapter is inert, whatever A: theta_0 need not travel.
        self._set(np.zeros(space.size, dtype=np.float32))
        self.start = self._embed()
        set_adapters(encoder, current)

    def at(self, theta: NDArray[Any]) -> tuple[float, float]:
        """Return AUC and standard error under some adapters."""
        self._set(theta)
        return reference_auc(*self._embed(), *self.start)

    def is_chance(self) -> bool:
        """Say whether the encoder's present adapters leave at most 0.5 + one standard error."""
        auc, error = reference_auc(*self._embed(), *self.start)
        return auc <= 0.5 + error

    def _set(self, theta: NDArray[Any]) -> None:
        set_adapters(self.encoder, self.space.unflatten(theta))

    def _embed(self) -> tuple[Embedded, Embedded]:
        forget, outside = self.sets
        return embed(self.encoder, forget), embed(self.encoder, outside)


def _packed(prefix: str, found: Any) -> dict[str, NDArray[Any]]:
    return {
        f"{prefix}coefficients": found.coefficients.astype(np.float32),
        f"{prefix}directions": found.directions.astype(np.float16),
    }
