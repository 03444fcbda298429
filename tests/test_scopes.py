"""Class and sample requests, and calibration."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, Message
from inprocess import SMALL, simulate

from clients.memory import Memory
from ease_flower.config import Config
from ease_flower.data.federation import client_data
from ease_flower.errors import DataError, UserError
from ease_flower.metrics.evaluate import Embedded, reference_auc
from ease_flower.metrics.membership import membership_auc
from ease_flower.model.caching import compute_stems
from ease_flower.model.prepare import prepare
from ease_flower.model.replay import replay_round
from ease_flower.seeding import numpy_generator
from ease_flower.state import Store
from ease_flower.unlearning.attribution import counterfactual, low_rank, replayed_rounds
from ease_flower.unlearning.requests import ForgetRequest, forget_rows
from strategies.holders import Answer
from strategies.unlearning import STRENGTHS, pooled_auc, read_attribution

SAMPLE = {"scope": "sample", "forget": "site-0,site-2", "forget_share": 0.25}


def recorder(seen: list[tuple[int, str, Message]]):
    """Keep every reply: (partition, phase, reply)."""

    def change(partition: int, request: Message, reply: Message) -> Message:
        config = request.content.get("config")
        seen.append((partition, str(config["phase"]) if config else "", reply))
        return reply

    return {"change_reply": change}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("scopes") / "trained"
    simulate(path, phase="train")
    return path


def continued(trained: Path, path: Path, options: dict | None = None, **keys):
    shutil.copytree(trained, path)
    return simulate(path, options, **keys)


def held_pairs(partition: int):
    config = Config.from_run_config(SMALL)
    return config, client_data(config, partition, config.num_clients).train


@pytest.mark.parametrize("attribution", ["replay", "pseudo"])
def test_a_class_request_takes_its_pairs_out_of_every_later_round(trained, tmp_path, attribution):
    seen: list[tuple[int, str, Message]] = []
    request = {"scope": "class", "forget": "circle", "attribution": attribution}
    run = continued(trained, tmp_path / "s", recorder(seen), **request)
    named = []
    for partition in range(3):
        config, pairs = held_pairs(partition)
        named.append(len(forget_rows(ForgetRequest("class", ("circle",)), config, "", pairs)))
    assert sum(named) > 0
    for phase in ("retrain", "recover"):
        counts = {p: r.content["metrics"]["num-examples"] for p, ph, r in seen if ph == phase}
        assert counts == {p: 12 - n for p, n in enumerate(named)}
    found = json.loads((tmp_path / "s" / "reports" / "metrics.json").read_text())
    assert (found["scope"], found["forgotten"], found["n"]["forget"]) == (
        "class",
        "circle",
        sum(named),
    )
    assert run.store.basis().shape[1] > 0


def test_ids_of_a_sample_request_stay_with_the_holder(trained, tmp_path):
    _, pairs = held_pairs(1)
    chosen = pairs.ids[2:5]
    (tmp_path / "site-1.txt").write_text("\n".join(chosen) + "\n")
    seen: list[tuple[int, str, Message]] = []
    run = continued(
        trained,
        tmp_path / "s",
        recorder(seen),
        scope="sample",
        forget="site-1",
        forget_file=str(tmp_path / "{client}.txt"),
    )
    sent = [str(m.content) for m in run.grid.sent] + [str(r.content) for _, _, r in seen]
    assert not any(name in text for name in chosen for text in sent)
    state = [p for p in (tmp_path / "s").rglob("*") if p.suffix == ".json"]
    assert not any(name in path.read_text() for name in chosen for path in state)
    counts = {p: r.content["metrics"]["num-examples"] for p, ph, r in seen if ph == "recover"}
    assert counts == {0: 12, 1: 9, 2: 12}


@pytest.mark.parametrize(
    ("lines", "said"),
    [("", "lists nothing"), ("a\n", "'a' is no pair"), ("{0}\n{0}\n", "is listed twice")],
)
def test_a_wrong_list_of_samples_says_what_is_wrong(tmp_path, lines, said):
    _, pairs = held_pairs(1)
    (tmp_path / "list.txt").write_text(lines.format(pairs.ids[0]))
    asked = Config(forget_file=str(tmp_path / "list.txt"))
    with pytest.raises(DataError, match=said):
        forget_rows(ForgetRequest("sample", ("site-1",)), asked, "site-1", pairs)


def test_a_round_replayed_with_every_pair_gives_the_same_bytes(trained):
    config, pairs = held_pairs(0)
    encoder, space = prepare(config)
    stems = compute_stems(encoder, pairs)
    kept = next((trained / "nodes" / "site-0").iterdir())
    received, returned = Memory(kept).read(2)
    rng = numpy_generator(config.seed, "fit", "site-0", 2)
    nothing = np.zeros(0, dtype=np.int64)
    again = replay_round(encoder, space, stems, nothing, config, rng, received)
    assert again is not None
    assert again.tobytes() == (returned - received).tobytes()


def test_a_counterfactual_of_nothing_retained_is_the_whole_update():
    update = np.array([1.0, -2.0])
    np.testing.assert_array_equal(counterfactual(update, None, 0.0), update)
    np.testing.assert_array_equal(counterfactual(update, update, 1.0), np.zeros(2))


def test_low_rank_keeps_the_strongest_directions():
    rng = np.random.default_rng(0)
    updates = rng.normal(size=(6, 2)) @ rng.normal(size=(2, 50))
    found = low_rank(updates, rank=5)
    assert found.directions.shape[0] <= 2
    np.testing.assert_allclose(low_rank(updates, 5, 1.0).rows(), updates, atol=1e-6)
    u, s, vt = np.linalg.svd(updates, full_matrices=False)
    np.testing.assert_allclose(low_rank(updates, 1).rows(), s[0] * np.outer(u[:, 0], vt[0]))


def test_replay_reaches_the_last_round_and_every_nth_before_it():
    assert replayed_rounds([1, 2, 3, 4, 5], 2) == [1, 3, 5]
    assert replayed_rounds([4], 9) == [4]


def test_a_holder_whose_memory_is_gone_is_named_and_the_rest_goes_on(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "s")
    shutil.rmtree(tmp_path / "s" / "nodes" / "site-0")
    run = simulate(tmp_path / "s", delta=1.0, **SAMPLE)
    assert any("site-0 no longer has" in text for text in run.store.manifest["notes"])
    assert run.store.basis().shape[1] > 0


def test_a_holder_that_is_offline_is_named_and_the_rest_goes_on(trained, tmp_path):
    def change(partition: int, request: Message, reply: Message) -> Message | None:
        gone = partition == 2 and request.metadata.message_type.startswith("train.")
        return None if gone else reply

    run = continued(trained, tmp_path / "s", {"change_reply": change}, delta=1.0, **SAMPLE)
    assert any("site-2 did not take part in 'attribute'" in t for t in run.store.manifest["notes"])
    assert run.store.basis().shape[1] > 0


def test_a_class_nobody_holds_is_refused_before_round_1(tmp_path):
    with pytest.raises(UserError, match="no connected client holds a pair of it"):
        simulate(tmp_path / "s", scope="class", forget="zebra")
    assert not (tmp_path / "s").exists()


def test_what_forget_pairs_added_is_gone_from_the_history_of_their_holders(trained, tmp_path):
    run = continued(trained, tmp_path / "s", replay_every=2, **SAMPLE)
    history, before = run.store.history, Store(trained).history
    assert [u.round for u in history.of("site-1")][:3] == [1, 2, 3]  # holds nothing: whole
    assert [u.round for u in history.of("site-0")][:2] == [1, 3]  # the replayed rounds
    for old, new in zip(before.of("site-0")[::2], history.of("site-0")[:2], strict=True):
        assert not np.array_equal(before.read([old]), history.read([new]))
        assert not (tmp_path / "s" / old.file).exists()


def test_calibration_takes_the_lambda_at_which_the_attack_is_at_chance(trained, tmp_path):
    run = continued(trained, tmp_path / "s", **SAMPLE)
    found = run.store.manifest["calibration"]
    auc = np.array([point["auc"] for point in found["curve"]])
    tried = np.array([point["strength"] for point in found["curve"]])
    at_chosen = np.interp(found["strength"], tried, auc)
    assert at_chosen == pytest.approx(0.5) or found["strength"] == (0.0 if auc[0] < 0.5 else 1.0)
    assert len(found["curve"]) == len(STRENGTHS)
    assert "calibrated with 2 holders" in found["how"]


def test_who_cannot_be_told_from_held_out_pairs_is_not_displaced_as_well(trained, tmp_path):
    sent = {}
    for name, level in (("chance", 0.4), ("told apart", 0.9)):

        def change(partition: int, request: Message, reply: Message, auc: float = level) -> Message:
            if request.metadata.message_type == "train.calibrate":
                reply.content["result"]["auc"] = Array(np.full(len(STRENGTHS), auc))
                reply.content["result"]["se"] = Array(np.full(len(STRENGTHS), 0.05))
            return reply

        run = continued(
            trained, tmp_path / name, {"change_reply": change}, phase="unlearn", **SAMPLE
        )
        sent[name] = [m.metadata.message_type for m in run.grid.sent]
    assert "train.excise" not in sent["chance"]
    assert "train.excise" in sent["told apart"]


def test_a_client_that_is_gone_is_not_asked_and_the_report_says_not_calibrated(trained, tmp_path):
    run = continued(trained, tmp_path / "s")
    assert "not calibrated" in run.store.manifest["calibration"]["how"]
    page = (tmp_path / "s" / "reports" / "report.html").read_text()
    assert "not calibrated" in page
    assert not [m for m in run.grid.sent if m.metadata.message_type.startswith("train.")]


def test_one_branch_excision_leaves_the_other_branch_where_it_was(trained, tmp_path):
    moved = {}
    for branch in ("image", "text"):
        keys = {"forget_client_online": True, "calibrate": False, "excise_branches": branch}
        run = continued(trained, tmp_path / branch, phase="unlearn", strength=0.0, **keys)
        step = run.store.model("unlearn") - run.store.model("train")
        blocks = run.space.blocks("tower")
        moved[branch] = {t: float(np.linalg.norm(step[b])) for t, b in blocks.items()}
    assert moved["image"]["image"] > 5 * moved["image"]["text"]
    assert moved["text"]["text"] > 5 * moved["text"]["image"]


def test_a_holder_that_answers_nonsense_is_named_and_left_out(trained, tmp_path):
    def change(partition: int, request: Message, reply: Message) -> Message:
        if partition == 2 and request.metadata.message_type == "train.attribute":
            record = reply.content["result"]
            record["directions"] = Array(np.full((1, 3), np.nan, dtype=np.float16))
        return reply

    run = continued(trained, tmp_path / "s", {"change_reply": change}, delta=1.0, **SAMPLE)
    assert any("site-2" in t and "not finite" in t for t in run.store.manifest["notes"])
    assert run.store.basis().shape[1] > 0


def test_directions_of_the_wrong_shape_are_no_attribution():
    good = {
        "coefficients": np.ones((2, 1)),
        "directions": np.ones((1, 5)),
        "rounds": np.array([1, 2]),
    }
    assert read_attribution(Answer("a", good, 3, {}), 5) is not None
    assert read_attribution(Answer("a", good | {"directions": np.ones((1, 4))}, 3, {}), 5) is None
    for wrong in (
        {"directions": np.ones((2, 5))},
        {"coefficients": np.ones(2)},
        {"rounds": np.array([1])},
    ):
        assert read_attribution(Answer("a", good | wrong, 3, {}), 5) is None
    assert read_attribution(Answer("a", good, 3, {}), 6) is None


def test_holders_aucs_are_pooled_by_their_pairs_with_the_error_of_the_mean():
    answers = [
        Answer("a", {"auc": np.array([0.8]), "se": np.array([0.04])}, 30, {}),
        Answer("b", {"auc": np.array([0.6]), "se": np.array([0.08])}, 10, {}),
    ]
    auc, error = pooled_auc(answers)
    assert auc[0] == pytest.approx(0.75)
    assert error[0] == pytest.approx(np.hypot(0.75 * 0.04, 0.25 * 0.08))


def test_the_reference_attack_is_blind_to_what_was_there_before_training():
    """Two samples that differ from the start, neither of them learnt: the plain attack errs."""
    rng = np.random.default_rng(0)

    def pairs(num: int, similarity: float) -> Embedded:
        image = np.tile([1.0, 0.0], (num, 1))
        angle = np.arccos(similarity) + rng.normal(0, 0.05, num)
        return Embedded(image, np.stack([np.cos(angle), np.sin(angle)], 1), np.arange(num))

    easy, hard = pairs(40, 0.9), pairs(40, 0.5)
    plain = membership_auc((easy.image * easy.text).sum(1), (hard.image * hard.text).sum(1))[0]
    assert plain > 0.9
    assert reference_auc(easy, hard, easy, hard)[0] == 0.5
    learnt = Embedded(easy.image, easy.image, easy.owner)
    assert reference_auc(learnt, hard, easy, hard)[0] > 0.95
