"""A package's child and what becomes ours by adoption."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from harness.children import running

ORPHAN = """
import os, subprocess, sys, time
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, str(subprocess.Popen(["sleep", "0.2"]).pid).encode())
    os._exit(0)
os.wait()
pid = os.read(reader, 20).decode()
deadline = time.monotonic() + 20
while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
    time.sleep(0.01)
sys.exit(os.path.exists(f"/proc/{pid}"))
"""


def test_a_dead_orphan_does_not_stay_a_zombie() -> None:
    """A server that a test killed looks alive as a zombie, and would not be started again."""
    with running([sys.executable, "-c", ORPHAN], env=dict(os.environ), cwd=Path(__file__).parent, grace=5) as child:
        assert child.wait(30)
    assert child.returncode == 0
