"""Ablations: variants share what they may share, and nothing is run twice."""

import json
from pathlib import Path

import pytest
from inprocess import SMALL

from clients.client_app import app
from ease_flower.cli.variants import SCOPES, folder_name, variants
from ease_flower.config import Config
from ease_flower.report.ablation import ablation_table, render_ablation, sweep
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
    found = variants(list(SCOPES), config)
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


@pytest.mark.parametrize("scope", list(SCOPES))
def test_every_scope_has_a_full_variant(scope):
    assert f"{scope}/full" in variants([scope], Config())


def _row(name: str, seed: int, gap: float, **settings: object) -> dict[str, object]:
    gaps = dict.fromkeys(("forget_r1", "retain_r1", "test_r1", "membership_auc"), gap)
    return {
        "variant": name,
        "scope": "client",
        "seed": seed,
        "settings": {"scope": "client", "forget": "site-1", **settings},
        "gap": gaps,
        "cost": {"bytes_ratio": 0.1, "client_time_ratio": 0.1},
        "drift": {"locked": 0.02, "bound": 0.03},
    }


def test_a_sweep_takes_only_rows_in_which_nothing_else_was_turned():
    rows = [
        _row("client/full", 0, 1.0),
        _row("client/delta 0.1", 0, 2.0, delta=0.1),
        _row("client/delta 0.1, no lock", 0, 9.0, delta=0.1, lock="none"),
    ]
    found = sweep(rows, "delta", {"delta": 0.35})
    assert {value: [row["gap"]["forget_r1"] for row in same] for value, same in found.items()} == {
        0.1: [2.0],
        0.35: [1.0],
    }


def test_the_page_holds_the_table_and_a_chart_for_every_setting_that_was_turned():
    settings = Config().to_run_config()
    rows = [_row("client/full", s, 1.0 + s) for s in (0, 1)]
    rows += [_row("client/<b>", s, 2.0, delta=0.1) for s in (0, 1)]
    rows += [_row("client/alpha 1", s, 2.0, **{"lock-alpha": 1.0}) for s in (0, 1)]
    page = render_ablation(rows, settings)
    assert page.count("<svg") == 2  # delta, and drift over alpha
    assert "+1.5 ± 0.7" in page
    assert "<b>" not in page and "&lt;b&gt;" in page
