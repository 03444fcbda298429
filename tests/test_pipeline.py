"""Train, retrain, unlearn, recover and evaluate in this process: what must hold whatever fails."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message
from flwr.serverapp.exception import AggregationError
from inprocess import simulate

from ease_flower.errors import StateError, UserError
from ease_flower.model.export import import_adapter
from ease_flower.state import Store
from ease_flower.unlearning.reaverage import reaveraging
from strategies.server_app import only_one


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "finished"
    simulate(path)
    return path


def models(path: Path) -> dict[str, str]:
    """Hash every committed model by track and round."""
    tracks = json.loads((path / "manifest.json").read_text())["models"]
    return {
        f"{track}-{rnd}": entry["sha256"]
        for track, rounds in tracks.items()
        for rnd, entry in rounds.items()
    }


def metrics(path: Path) -> dict:
    """Read metrics.json without the one figure that is measured with a clock."""
    found = json.loads((path / "reports" / "metrics.json").read_text())
    del found["cost"]["client_time_ratio"]
    return found


def test_metrics_have_the_documented_shape(finished):
    found = json.loads((finished / "reports" / "metrics.json").read_text())
    keys = {"forget_r1", "retain_r1", "test_r1", "membership_auc", "membership_auc_se"}
    for side in ("before", "unlearned", "retrain", "gap"):
        assert keys <= found[side].keys()
    for key in keys:
        assert found["gap"][key] == found["unlearned"][key] - found["retrain"][key]
    assert {"bytes_ratio", "client_time_ratio"} == found["cost"].keys()
    assert (found["seed"], found["backbone"], found["method"], found["scope"]) == (
        0,
        "tiny",
        "ease",
        "client",
    )


def test_the_leavers_updates_are_deleted_and_nobody_elses(finished):
    kept = {p.name for p in (finished / "history").iterdir()}
    assert kept == {"site-0", "site-2"}
    assert not [u for u in Store(finished).history.updates if u.client == "site-1"]


def test_recovery_starts_at_the_excised_model_also_under_the_lock(finished):
    """The lock once reset the adapters that had just been received."""
    store = Store(finished)
    start, end, zero = store.model("unlearn"), store.model("recover"), store.model("initial", 0)
    assert np.linalg.norm(end - start) < np.linalg.norm(end - zero)
    basis = store.basis()
    assert basis.shape[1] > 0
    assert np.abs(basis.T @ (end.astype(float) - start)).max() < 1e-5


@pytest.mark.parametrize("reaverage", [True, False])
def test_excision_removes_the_leavers_own_part_and_outside_it_averages_again(tmp_path, reaverage):
    simulate(tmp_path / "s", phase="train")
    added = reaveraging(Store(tmp_path / "s").history, ["site-1"])
    simulate(tmp_path / "s", reaverage=reaverage)
    store = Store(tmp_path / "s")
    before, after = store.model("train").astype(float), store.model("unlearn").astype(float)
    basis = store.basis()
    np.testing.assert_allclose(basis.T @ basis, np.eye(basis.shape[1]), atol=1e-10)
    moved = after - before - (added if reaverage else 0.0)
    np.testing.assert_allclose(moved - basis @ (basis.T @ moved), 0, atol=1e-6)
    np.testing.assert_allclose(basis.T @ after, 0, atol=1e-5)  # theta_0 = 0 with B alone
    assert np.linalg.norm(added) > 1e-3


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(finished, tmp_path):
    simulate(tmp_path / "again")
    assert models(tmp_path / "again") == models(finished)
    assert metrics(tmp_path / "again") == metrics(finished)
    adapter = "reports/adapter/adapter_model.safetensors"
    assert (tmp_path / "again" / adapter).read_bytes() == (finished / adapter).read_bytes()
    simulate(tmp_path / "other", seed=1, phase="train")
    assert models(tmp_path / "other")["train-3"] != models(finished)["train-3"]


def test_replies_in_another_order_give_the_same_bytes(finished, tmp_path):
    simulate(tmp_path / "shuffled", {"shuffle": 7})
    assert models(tmp_path / "shuffled") == models(finished)
    assert metrics(tmp_path / "shuffled") == metrics(finished)


@pytest.mark.parametrize("track", ["train", "retrain", "recover"])
def test_a_run_killed_in_a_round_continues_to_the_same_bytes(
    finished, tmp_path, monkeypatch, track
):
    class Killed(BaseException):
        pass

    put, kill_in = Store.put_model, {"train": 3, "retrain": 2, "recover": 1}[track]

    def dying(store, name, rnd, theta):
        put(store, name, rnd, theta)
        if (name, rnd) == (track, kill_in):
            raise Killed  # files are there, the manifest is not

    monkeypatch.setattr(Store, "put_model", dying)
    with pytest.raises(Killed):
        simulate(tmp_path / "killed")
    monkeypatch.setattr(Store, "put_model", put)
    simulate(tmp_path / "killed")
    assert models(tmp_path / "killed") == models(finished)
    assert metrics(tmp_path / "killed") == metrics(finished)


def test_a_kill_while_the_leaver_is_deleted_is_made_good(finished, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def dying(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("ease_flower.state.history.Path.unlink", dying)
        with pytest.raises(Killed):
            simulate(tmp_path / "killed")
    assert (tmp_path / "killed" / "history" / "site-1").exists()
    simulate(tmp_path / "killed")
    assert not (tmp_path / "killed" / "history" / "site-1").exists()
    assert models(tmp_path / "killed") == models(finished)


def replace_arrays(reply: Message, value: float) -> Message:
    record = reply.content["arrays"]
    first, array = next(iter(record.items()))
    record[first] = Array(np.full_like(array.numpy(), value))
    return reply


def wrong_shape(reply: Message) -> Message:
    record = reply.content["arrays"]
    record[next(iter(record))] = Array(np.zeros((2, 2), np.float32))
    return reply


def no_arrays(reply: Message) -> Message:
    reply.content["arrays"] = ArrayRecord()
    return reply


def bad_count(reply: Message) -> Message:
    reply.content["metrics"]["num-examples"] = -5
    return reply


BAD = {
    "not finite": lambda m: replace_arrays(m, math.nan),
    "shape (2, 2)": wrong_shape,
    "array names differ": no_arrays,
    "must be a positive integer": bad_count,
    "no reply": lambda m: None,
    "out of memory": lambda m: Message(Error(code=2, reason="out of memory"), reply_to=m),
}


@pytest.mark.parametrize("reason", BAD)
def test_a_bad_reply_is_dropped_named_and_counted(tmp_path, reason):
    def change(partition, request, reply):
        if partition == 2 and request.metadata.message_type == "train":
            if reason == "out of memory":
                return Message(Error(code=2, reason=reason), reply_to=request)
            return BAD[reason](reply)
        return reply

    run = simulate(tmp_path / "s", {"change_reply": change}, phase="train", rounds=1)
    dropped = run.store.manifest["dropped"]
    assert [(d["track"], d["round"], d["client"]) for d in dropped] == [("train", 1, "site-2")]
    assert reason in dropped[0]["reason"]
    assert run.store.history.clients() == ["site-0", "site-1"]
    assert np.isfinite(run.store.model("train")).all()


def test_a_round_without_a_usable_reply_fails_with_every_reason(tmp_path):
    def change(partition, request, reply):
        if request.metadata.message_type == "train":
            return Message(Error(code=2, reason=f"disk {partition} full"), reply_to=request)
        return reply

    with pytest.raises(AggregationError, match=r"disk 0 full.*disk 2 full"):
        simulate(tmp_path / "s", {"change_reply": change}, phase="train")


def test_the_leaver_is_never_asked_by_retrain_and_recover(tmp_path):
    run = simulate(tmp_path / "s")
    for message in run.grid.sent:
        if message.metadata.message_type == "train":
            phase = message.content["config"]["phase"]
            if phase in ("retrain", "recover"):
                assert message.metadata.dst_node_id != 1001


def test_a_changed_history_file_is_refused(tmp_path):
    run = simulate(tmp_path / "s", phase="train")
    file = tmp_path / "s" / run.store.history.updates[0].file
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(StateError, match="changed since it was written"):
        simulate(tmp_path / "s", phase="unlearn")


def test_phases_run_on_different_days_give_the_same_bytes(finished, tmp_path):
    for phase in ("train", "retrain", "unlearn", "recover", "evaluate"):
        simulate(tmp_path / "s", phase=phase)
    assert models(tmp_path / "s") == models(finished)


@pytest.mark.parametrize(
    ("phase", "reason"),
    [("unlearn", "run phase 'train' first"), ("recover", "nothing was excised yet")],
)
def test_a_phase_out_of_order_is_refused(tmp_path, phase, reason):
    with pytest.raises(UserError, match=reason):
        simulate(tmp_path / "s", phase=phase)


def test_an_unknown_client_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(UserError, match=r"did you mean 'site-1'.*known: site-0, site-1, site-2"):
        simulate(tmp_path / "s", forget="site1")
    assert not (tmp_path / "s").exists()


def test_other_settings_or_another_recipe_in_a_used_directory_are_refused(finished):
    with pytest.raises(StateError, match=r"delta = 0\.35, not 0\.2"):
        simulate(finished, delta=0.2)
    with pytest.raises(StateError, match="made with rounds = 3, not 4"):
        simulate(finished, rounds=4)


def test_two_runs_cannot_share_a_state_directory(tmp_path):
    with (
        only_one(tmp_path / "s"),
        pytest.raises(StateError, match="another run"),
        only_one(tmp_path / "s"),
    ):
        pass


def test_the_adapter_of_the_report_is_the_recovered_model(finished):
    run = simulate(finished, phase="evaluate")
    arrays = import_adapter(finished / "reports" / "adapter", run.encoder)
    assert run.space.flatten(arrays).tobytes() == run.store.model("recover").tobytes()


def test_no_caption_or_image_id_is_in_any_message(tmp_path):
    run = simulate(tmp_path / "s", phase="train", rounds=1)
    replies = [str(m.content) for m in run.grid.sent]
    assert not any("scene-" in text or "triangle" in text for text in replies)


def test_weights_follow_the_number_of_pairs():
    from strategies.replies import Reply, weighted_mean

    replies = [
        Reply("b", np.array([4.0], np.float32), 3, 0.0, 0, {}),
        Reply("a", np.array([0.0], np.float32), 1, 0.0, 0, {}),
    ]
    assert weighted_mean(replies).tolist() == [3.0]
