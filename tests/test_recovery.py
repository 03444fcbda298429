"""Recovery: the forget lock, its drift bound, and the rounds after it."""

import json

import numpy as np
import pytest
import torch
from flwr.app import Message
from inprocess import simulate

from ease_flower.config import Config
from ease_flower.model import adapters, training
from ease_flower.model.training import Lock, LockStep


def test_the_lock_travels_once_a_client(tmp_path):
    run = simulate(tmp_path / "s", recover_rounds=3)
    carried = [m for m in run.grid.sent if "lock" in m.content]
    assert len(carried) == 2
    assert not any("anchor" in m.content for m in carried)  # theta_u is what is being sent


def test_a_client_whose_reply_was_lost_gets_the_lock_again(tmp_path):
    lost = []

    def change(partition: int, request: Message, reply: Message) -> Message | None:
        if partition == 0 and "lock" in request.content and not lost:
            lost.append(request)
            return None
        return reply

    run = simulate(tmp_path / "s", {"change_reply": change}, recover_rounds=3)
    again = [m for m in run.grid.sent if "lock" in m.content and m.metadata.dst_node_id == 1000]
    assert len(again) == 2
    assert "anchor" in again[1].content
    anchor = np.concatenate([a.ravel() for a in again[1].content["anchor"].to_numpy_ndarrays()])
    np.testing.assert_array_equal(anchor, run.store.model("unlearn"))


def test_bilateral_excision_is_done_where_asked_for_and_locked(tmp_path):
    run = simulate(tmp_path / "s", forget_client_online=True, excise_steps=3, calibrate=False)
    store = run.store
    moved = store.model("recover").astype(float) - store.model("unlearn")
    removed = sum(sum(block["removed"]) for block in store.manifest["angles"])
    assert removed < store.basis().shape[1] <= removed + 3  # its path, as few directions
    assert np.abs(store.basis().T @ moved).max() < 1e-5
    assert store.manifest["costs"]["unlearn"]["client_seconds"] > 0


@pytest.mark.parametrize("keys", [{}, {"lock": "penalty", "optimizer": "sgd"}])
def test_drift_along_what_was_removed_stays_below_push_over_alpha(tmp_path, keys):
    locked = {}
    for alpha in (1.0, 100.0):
        path = tmp_path / f"{alpha:g}"
        simulate(path, recover_rounds=2, lock_alpha=alpha, local_epochs=3, **keys)
        drift = json.loads((path / "reports" / "metrics.json").read_text())["drift"]
        assert 0 < drift["locked"] <= drift["bound"] * (1 + 1e-3)
        assert drift["global"] < 1e-5
        locked[alpha] = drift["locked"]
    assert locked[100.0] < locked[1.0]


def test_without_lock_and_projection_the_model_goes_back_along_what_was_removed(tmp_path):
    drifts = {}
    for lock, project in (("proximal", True), ("none", False)):
        path = tmp_path / lock
        simulate(path, recover_rounds=2, lock=lock, project=project)
        drifts[lock] = json.loads((path / "reports/metrics.json").read_text())["drift"]["global"]
    assert drifts["none"] > 100 * drifts["proximal"]


def test_later_rounds_are_trained_by_the_reference_too_and_are_no_cost_of_unlearning(tmp_path):
    simulate(tmp_path / "now", recover_rounds=1)
    later = simulate(tmp_path / "later", recover_rounds=1, later_rounds=2)
    costs = later.store.manifest["costs"]
    assert later.store.rounds_done("recover") == 1 + 2
    assert later.store.rounds_done("retrain") == 3 + 2
    assert (costs["recover"]["rounds"], costs["later"]["rounds"]) == (1, 2 + 2)
    ratios = [
        json.loads((tmp_path / name / "reports/metrics.json").read_text())["cost"]["bytes_ratio"]
        for name in ("now", "later")
    ]
    assert ratios[0] == ratios[1]
    curve = json.loads((tmp_path / "later" / "reports/report.json").read_text())["curve"]
    assert [point["round"] for point in curve] == [0, 1, 2, 3]


def test_recovery_may_take_other_epochs_than_training(tmp_path):
    same = simulate(tmp_path / "same", recover_rounds=1, reference=False)
    more = simulate(tmp_path / "more", recover_rounds=1, recover_epochs=3, reference=False)
    assert (same.store.model("train") == more.store.model("train")).all()
    steps = [
        np.linalg.norm(run.store.model("recover") - run.store.model("unlearn"))
        for run in (same, more)
    ]
    assert steps[1] > 1.5 * steps[0]


@pytest.mark.parametrize("kind", ["proximal", "penalty"])
def test_under_a_steady_gradient_drift_ends_at_gradient_over_alpha(monkeypatch, kind):
    """One locked entry of two, a gradient of 3 on both, alpha 10: by hand, drift is 0.3."""
    weight = torch.nn.Parameter(torch.zeros(2))
    for module in (adapters, training):
        monkeypatch.setattr(module, "trained_parameters", lambda _: {"image.w": weight})
    lock = Lock(torch.tensor([[1.0], [0.0]]), torch.zeros(2))
    config = Config(lock=kind, lock_alpha=10.0, optimizer="sgd", learning_rate=0.01)
    held = LockStep(None, lock, config)
    for _ in range(400):
        penalty = 10.0 * weight.detach()[0] if kind == "penalty" else torch.tensor(0.0)
        with torch.no_grad():
            weight -= 0.01 * torch.stack([3.0 + penalty, torch.tensor(3.0)])
        held()
    assert held.push == pytest.approx(3.0, rel=1e-4)
    assert float(held.along.norm()) == pytest.approx(3.0 / 10.0, rel=1e-3)
    assert weight[1].item() == pytest.approx(-0.01 * 3.0 * 400, rel=1e-4)  # not locked
