"""The application as its own process, as an operator runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "application"]


def test_it_runs_until_it_is_told_to_stop(e2e_database_url: str) -> None:
    """The application says in one line that it is ready, stays, and ends cleanly at TERM."""
    environment = {**os.environ, "MC_DB_DSN": e2e_database_url, "MC_RECONCILE_INTERVAL": "60"}
    with subprocess.Popen(COMMAND, cwd=FOLDER, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as application:
        try:
            assert application.stdout is not None
            ready = application.stdout.readline()
            with pytest.raises(subprocess.TimeoutExpired):
                application.wait(0.2)
            application.send_signal(signal.SIGTERM)
            rest = application.communicate(timeout=60)
        finally:
            application.kill()
    assert (ready, rest, application.returncode) == ("mission control is ready (0 migrations applied)\n", ("", ""), 0)


def test_it_asks_for_its_database() -> None:
    """Without `MC_DB_DSN` the application connects to nothing and names the variable."""
    environment = {name: value for name, value in os.environ.items() if name != "MC_DB_DSN"}
    ended = subprocess.run(COMMAND, cwd=FOLDER, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("MC_DB_DSN is not set;")
