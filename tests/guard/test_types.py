"""Forgetting to ask the guard is a type error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import HARNESS_ROOT

SNIPPET = """\
from harness import guard, reset, streams
from harness.database import Connection
from harness.guard import Proof
from harness.targets import Dsn, SafeTarget

def take(connection: Connection, proof: Proof, dsn: Dsn, plan: streams.Plan) -> None:
    target = {target}
    reset.stamp(connection, target, worktree="", repository="")
    guard.prove_rights(proof, [target], connection)
    targets: tuple[SafeTarget, ...] = (target,)
"""


@pytest.mark.parametrize(("target", "errors"), [("dsn", 3), ('guard.prove(proof, "test")', 0)], ids=["a DSN", "a proven target"])
def test_a_plain_dsn_is_no_target(tmp_path: Path, target: str, errors: int) -> None:
    """The checker refuses a DSN where a SafeTarget is due, and takes what the guard returned."""
    pytest.importorskip("mypy", reason="mypy is not installed; it is in the dev group")
    path = tmp_path / "snippet.py"
    path.write_text(SNIPPET.format(target=target))
    argv = [sys.executable, "-m", "mypy", "--config-file", str(HARNESS_ROOT / "pyproject.toml"), "--follow-imports=silent", str(path)]
    done = subprocess.run(argv, cwd=HARNESS_ROOT, capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert len(found) == errors, done.stdout + done.stderr
    assert all("SafeTarget" in line for line in found)
