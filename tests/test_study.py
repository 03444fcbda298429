"""Ablations: variants share what they may share, and nothing is run twice."""

import json
from pathlib import Path

import pytest
from inprocess import SMALL

from clients.client_app import app
from ease_flower.cli.ablate import REQUESTS, ablation_table, folder_name, variants
from ease_flower.config import Config
from strategies import study
from strategies.study import run_variant


def test_variants_of_a_request_share_the_trained_and_the_retrained_model(tmp_path):
    for name, settings in {"a": {"lock": "none"}, "b": {"delta": 1.0}, "c": {"seed": 1}}.items():
        run_variant(app, tmp_path, tmp_path / name, {**SMALL, **settings})
    assert len(list(tmp_path.glob("train-*"))) == len(list(tmp_path.glob("retrain-*"))) == 2
    found = {n: json.loads((tmp_path / n / "reports/metrics.json").read_text()) for n in "abc"}
    assert found["a"]["retrain"] == found["b"]["retrain"] != found["c"]["retrain"]
    assert found["a"]["before"] == found["b"]["before"]


def test_a_study_goes_on_where_it_was_stopped(tmp_path, monkeypatch, capsys):
    spec = {"root": str(tmp_path / "s"), "variants": [{"name": "a", "settings": dict(SMALL)}]}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    study.main(str(tmp_path / "spec.json"))

    def never(*_: object) -> None:
        raise AssertionError("run again")

    monkeypatch.setattr(study, "run_variant", never)
    study.main(str(tmp_path / "spec.json"))
    assert capsys.readouterr().out.split() == ["done", "a", "done", "a"]


def test_every_variant_is_a_valid_config_under_a_name_of_its_own():
    config = Config(num_clients=5)
    found = variants(list(REQUESTS), config)
    for settings in found.values():
        Config.from_run_config({**config.to_run_config(), **settings})
    assert len({folder_name(name) for name in found}) == len(found) > 50
    assert all(Path(folder_name(name)).name == folder_name(name) for name in found)


def test_the_table_gives_mean_and_spread_of_the_gaps():
    side = dict.fromkeys(("forget_r1", "retain_r1", "test_r1", "membership_auc"), 0.0)
    rows = [
        {
            "variant": "client/full",
            "seed": seed,
            "gap": side | {"forget_r1": gap},
            "cost": {"bytes_ratio": 0.25, "client_time_ratio": 0.1},
        }
        for seed, gap in ((0, 1.0), (1, 3.0))
    ]
    assert ablation_table(rows)[1] == [
        "client/full",
        "+2.0 ± 1.4",
        "+0.0 ± 0.0",
        "+0.0 ± 0.0",
        "+0.000 ± 0.000",
        "25.0",
        "10.0",
    ]


@pytest.mark.parametrize("scope", list(REQUESTS))
def test_every_scope_has_a_full_variant(scope):
    assert f"{scope}/full" in variants([scope], Config())
