"""Run ``flwr run`` and tell the truth about how it ended.

``flwr run --stream`` exits 0 when the server app crashes and when every client fails, and a
local Flower daemon keeps the directory, environment and virtual environment of whoever started
it first. So each simulation here gets a daemon of its own (private FLWR_HOME and ports, a
neutral working directory), its status is read from ``flwr list``, and the daemon is stopped.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from ease_flower.cli.bundle import make_bundle, to_toml
from ease_flower.config import Config
from ease_flower.errors import UserError

STATUS_POLL_S = 0.5
STATUS_TIMEOUT_S = 60.0


@dataclass
class Outcome:
    """How a run ended: Flower's own status, and the lines that say why it failed."""

    status: str
    details: str = ""
    reasons: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the run finished and was not stopped or failed."""
        return self.status == "finished:completed"


def launch(
    config: Config, cpus_per_client: int, log_file: Path, on_line: Callable[[str], None]
) -> Outcome:
    """Simulate one run to its end.

    Parameters
    ----------
    config : Config
        ``num-clients`` is the number of simulated nodes.
    cpus_per_client : int
        CPUs of one Ray actor; actors = CPUs / this.
    log_file : Path
        All output of the run.
    on_line : callable
        Called with every line, as it comes.
    """
    flwr = find_flwr()
    with tempfile.TemporaryDirectory(prefix="ease-flower-") as scratch:
        folder = Path(scratch)
        app = make_bundle(folder / "ease-flower", version("ease-flower"))
        run_config = folder / "run.toml"
        run_config.write_text(to_toml(config.to_run_config()), encoding="utf-8")
        with _private_daemon(folder) as env:
            federation = (
                f"num-supernodes={config.num_clients} "
                f"client-resources-num-cpus={cpus_per_client} client-resources-num-gpus=0.0"
            )
            command = [flwr, "run", str(app), "--stream", "--run-config", str(run_config)]
            command += ["--federation-config", federation]
            reasons = _stream(command, env, folder, log_file, on_line)
            outcome = _status(flwr, env, folder)
    outcome.reasons = reasons
    return outcome


def find_flwr() -> str:
    """Find the flwr command beside this Python, or on the path."""
    beside = Path(sys.executable).parent / "flwr"
    found = str(beside) if beside.exists() else shutil.which("flwr")
    if not found:
        raise UserError("flwr: command not found; install it with: pip install 'flwr[simulation]'")
    return found


@contextmanager
def _private_daemon(folder: Path) -> Iterator[dict[str, str]]:
    """Give an environment in which flwr starts its own daemon; stop that daemon afterwards."""
    ports = _free_ports(2)
    env = os.environ | {
        "FLWR_HOME": str(folder / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(ports[0]),
        "FLWR_LOCAL_CONTROL_API_PORT": str(ports[1]),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "RAY_DEDUP_LOGS": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "PYTHONUNBUFFERED": "1",
    }
    try:
        yield env
    finally:
        _stop_daemon(str(folder / "flwr"))


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


def _stop_daemon(home: str) -> None:
    """Stop every process that carries this FLWR_HOME in its environment."""
    mine = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("FLWR_HOME") == home:
                mine.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess, OSError):
            continue
    for process in mine:
        _signal(process, signal.SIGTERM)
    _, alive = psutil.wait_procs(mine, timeout=5)
    for process in alive:
        _signal(process, signal.SIGKILL)
    psutil.wait_procs(alive, timeout=5)


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _stream(
    command: list[str],
    env: dict[str, str],
    folder: Path,
    log_file: Path,
    on_line: Callable[[str], None],
) -> list[str]:
    """Run the command, pass on its lines, and return those that tell of a failure."""
    log_file.parent.mkdir(parents=True, exist_ok=True)
    reasons: list[str] = []
    with (
        log_file.open("a", encoding="utf-8") as log,
        subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                log.write(line)
                log.flush()
                text = line.rstrip()
                on_line(text)
                if "ERROR" in text or "dropped" in text or "AggregationError" in text:
                    reasons.append(text)
        except BaseException:
            process.terminate()
            raise
    return list(dict.fromkeys(reasons))[-12:]


def _status(flwr: str, env: dict[str, str], folder: Path) -> Outcome:
    """Ask Flower how the (only) run of this daemon ended."""
    deadline = time.monotonic() + STATUS_TIMEOUT_S
    entry: dict[str, Any] = {}
    while time.monotonic() < deadline:
        listed = subprocess.run(
            [flwr, "list", "--format", "json"],
            env=env,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            runs = json.loads(listed.stdout).get("runs", [])
        except (json.JSONDecodeError, AttributeError):
            runs = []
        entry = runs[0] if runs else {}
        if str(entry.get("status", "")).startswith("finished"):
            return Outcome(str(entry["status"]), str(entry.get("status-details", "")))
        time.sleep(STATUS_POLL_S)
    return Outcome(str(entry.get("status", "not started")), "Flower did not end the run")
