"""Re-averaging: the rounds' means without the leavers, worked out by hand and against FedAvg."""

import numpy as np
import pytest

from ease_flower.state.history import History
from ease_flower.unlearning.reaverage import reaveraging


@pytest.fixture
def history(tmp_path) -> History:
    out = History(tmp_path)
    out.append("a", 1, 10, np.array([1.0, 0.0]))
    out.append("b", 1, 30, np.array([0.0, 4.0]))
    out.append("u", 1, 40, np.array([2.0, 2.0]))
    out.append("a", 2, 10, np.array([8.0, 0.0]))
    out.append("b", 2, 30, np.array([0.0, 8.0]))
    return out


def test_what_is_added_is_each_rounds_mean_without_the_leaver_less_its_mean(history):
    # Round 1: mean of all (10*1 + 40*2, 30*4 + 40*2) / 80 = (1.125, 2.5); without u (0.25, 3).
    # Round 2: u took no part, so nothing changes.
    np.testing.assert_allclose(reaveraging(history, ["u"]), [0.25 - 1.125, 3.0 - 2.5], rtol=1e-12)


def test_a_round_of_leavers_alone_adds_nothing(history):
    # Round 2 has no third client to average; round 1 keeps u alone: (2, 2) - (1.125, 2.5).
    np.testing.assert_allclose(reaveraging(history, ["a", "b"]), [0.875, -0.5], rtol=1e-12)


def test_who_took_part_in_no_round_changes_nothing(history):
    assert reaveraging(history, ["nobody"]) is None


def test_with_updates_that_do_not_answer_to_each_other_it_is_retraining_exactly(tmp_path):
    rng = np.random.default_rng(0)
    history = History(tmp_path)
    trained, retrained = np.zeros(5), np.zeros(5)
    weights = {"a": 3, "b": 5, "u": 2, "v": 7}
    for rnd in range(1, 4):
        updates = {name: rng.normal(size=5).astype(np.float32) for name in weights}
        for name, delta in updates.items():
            history.append(name, rnd, weights[name], delta)
        trained += np.average([*updates.values()], axis=0, weights=[*weights.values()])
        retrained += np.average([updates["a"], updates["b"]], axis=0, weights=[3, 5])
    np.testing.assert_allclose(trained + reaveraging(history, ["u", "v"]), retrained, atol=1e-6)
