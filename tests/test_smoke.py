"""Real Flower: `ease-flower run` starts `flwr run` with Ray and tells how it ended."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).with_name("ease-flower")
SETTINGS = (
    "num-clients=2 pairs-per-client=12 holdout-per-client=8 test-pairs=16 gallery=16 rounds=1 "
    "local-epochs=1 batch-size=6"
)


def run(state: Path, *more: str) -> subprocess.CompletedProcess[str]:
    settings = [x for s in (*SETTINGS.split(), *more) for x in ("--set", s)]
    return subprocess.run(
        [COMMAND, "run", *settings, "--state-dir", state, "--format", "json"],
        cwd=state.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


@pytest.mark.smoke
@pytest.mark.usefixtures("real_cache")
def test_a_simulated_run_ends_as_completed_with_metrics_and_report(tmp_path):
    done = run(tmp_path / "state")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found == json.loads((tmp_path / "state/reports/metrics.json").read_text())
    assert (tmp_path / "state/reports/report.html").stat().st_size > 10_000


@pytest.mark.smoke
@pytest.mark.usefixtures("real_cache")
def test_a_run_whose_clients_all_fail_exits_with_1_and_their_reason(tmp_path):
    """A step size that overflows makes every client's loss infinite or NaN."""
    done = run(tmp_path / "state", "learning-rate=1e30", "local-epochs=5")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "finished:failed" in done.stderr
    assert "NotFinite: loss is" in done.stderr
    assert not (tmp_path / "state" / "reports").exists()


@pytest.mark.smoke
@pytest.mark.usefixtures("real_cache")
def test_an_ablation_writes_one_row_a_variant_and_seed(tmp_path):
    command = [COMMAND, "ablate", "--seeds", "0", "--state-dir", tmp_path / "study"]
    command += [x for s in SETTINGS.split() for x in ("--set", s)]
    command += ["--scopes", "client", "--only", "no GSD", "--format", "json"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout)
    assert [row["variant"] for row in rows] == ["client/no GSD (all directions)"]
    assert json.loads((tmp_path / "study" / "ablation.json").read_text()) == rows
