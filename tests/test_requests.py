"""One request after another, and who may take part afterwards."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from inprocess import simulate

from ease_flower.errors import StateError, UserError


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("requests") / "trained"
    simulate(path, phase="train")
    return path


def continued(trained: Path, path: Path, **keys):
    shutil.copytree(trained, path)
    return simulate(path, **keys)


def test_a_request_for_everybody_is_refused(tmp_path):
    with pytest.raises(UserError, match="names every client"):
        simulate(tmp_path / "s", forget="site-0,site-1,site-2")


def test_a_second_request_locks_the_directions_of_both(trained, tmp_path):
    first = continued(trained, tmp_path / "s", forget="site-1")
    u_one = first.store.basis()
    second = simulate(tmp_path / "s", forget="site-2")
    u_both = second.store.basis()
    np.testing.assert_array_equal(u_both[:, : u_one.shape[1]], u_one)
    np.testing.assert_allclose(u_both.T @ u_both, np.eye(u_both.shape[1]), atol=1e-9)
    moved = second.store.model("recover-2").astype(float) - second.store.model("unlearn-2")
    assert np.abs(u_both.T @ moved).max() < 1e-5
    assert second.store.manifest["forgotten"] == ["site-1", "site-2"]
    asked = {m.metadata.dst_node_id for m in second.grid.sent if "lock" in m.content}
    assert asked == {1000}


def test_what_an_earlier_request_took_is_neither_forgotten_nor_retained_in_the_next(
    trained, tmp_path
):
    continued(trained, tmp_path / "s", forget="site-1")
    second = simulate(tmp_path / "s", scope="class", forget="circle")
    found = json.loads((tmp_path / "s" / "reports" / "metrics.json").read_text())
    assert found["n"]["forget"] + found["n"]["retain"] == 24  # site-1's 12 are in neither
    asked = {m.metadata.dst_node_id for m in second.grid.sent}
    assert 1001 not in {
        m.metadata.dst_node_id
        for m in second.grid.sent
        if m.metadata.message_type.startswith(("train", "evaluate"))
    }
    assert {1000, 1002} <= asked


def test_more_rounds_of_a_finished_request_go_on_from_its_last(trained, tmp_path):
    first = continued(trained, tmp_path / "s", recover_rounds=1)
    more = simulate(tmp_path / "s", recover_rounds=3)
    assert more.store.rounds_done("recover") == 3
    kept = first.store.manifest["models"]["recover"]["1"]
    assert more.store.manifest["models"]["recover"]["1"] == kept


def test_the_same_request_twice_is_a_receipt_and_no_second_excision(trained, tmp_path):
    first = continued(trained, tmp_path / "s")
    again = simulate(tmp_path / "s")
    assert again.store.manifest["models"] == first.store.manifest["models"]
    assert not [m for m in again.grid.sent if m.metadata.message_type.startswith("train")]


def test_a_second_request_waits_for_the_first(trained, tmp_path):
    continued(trained, tmp_path / "s", phase="unlearn")
    with pytest.raises(StateError, match="is not finished"):
        simulate(tmp_path / "s", phase="unlearn", forget="site-2")


def test_who_left_comes_back_under_a_new_name_only(trained, tmp_path):
    continued(trained, tmp_path / "s", forget="site-1")
    with pytest.raises(UserError, match="under a new name"):
        simulate(tmp_path / "s", forget="site-0,site-1")


def test_two_requests_in_either_order_remove_the_same(trained, tmp_path):
    """Where every direction is removed; else what one request retains is the other's forget set."""
    found = {}
    for order in (("site-1", "site-2"), ("site-2", "site-1")):
        path = tmp_path / order[0]
        continued(trained, path, forget=order[0], delta=1.0, recover_rounds=0, reference=False)
        store = simulate(path, forget=order[1], delta=1.0, recover_rounds=0, reference=False).store
        found[order[0]] = store.model("unlearn-2"), store.basis()
    (theta_a, u_a), (theta_b, u_b) = found.values()
    moved = np.linalg.norm(theta_a - simulate(trained, phase="train").store.model("train"))
    assert np.linalg.norm(theta_a - theta_b) < 1e-4 * moved
    assert np.linalg.svd(u_a.T @ u_b, compute_uv=False).min() > 1 - 1e-6  # one span


def test_who_joins_after_a_request_learns_outside_what_was_removed(trained, tmp_path):
    continued(trained, tmp_path / "s", forget="site-1", recover_rounds=0)
    run = simulate(tmp_path / "s", forget="site-1", recover_rounds=2, num_clients=4)
    store, basis = run.store, run.store.basis()
    assert "site-3" in store.history.clients()
    alone = store.history.read(store.history.of("site-3"))
    assert np.linalg.norm(alone) > 0
    moved = store.model("recover").astype(float) - store.model("unlearn")
    assert np.linalg.norm(moved) > 0
    assert np.abs(basis.T @ moved).max() < 1e-5
    joined = [m for m in run.grid.sent if m.metadata.dst_node_id == 1003 and "lock" in m.content]
    assert len(joined) == 1
