"""A worktree with a cluster of its own, as the bootstrap makes it, and the end of whatever it recorded."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.builders import HARNESS_ROOT, SETTINGS, Completed, SampleRepository
from tests.scratch import start_time

PORTS = (18950, 18999)
SCRIPT = "test/bootstrap-stack.sh"


def settings_with(stack: str = "", *, ports: tuple[int, int] = PORTS) -> str:
    """Return the sample's harness.toml with a [stack] table."""
    return f"{SETTINGS}\n[stack]\nports = [{ports[0]}, {ports[1]}]\n{stack}"


class Place(SampleRepository):
    """A worktree whose cluster is its own; its state folder may be shared with others."""

    def __init__(self, root: Path, state: Path, stack: str = "", *, ports: tuple[int, int] = PORTS, git: bool = False) -> None:
        super().__init__(root, settings=settings_with(stack, ports=ports))
        self.state.rmdir()
        self.state = state
        state.mkdir(exist_ok=True)
        if git:
            self.git("init", "-q", "-b", "main")
        target = self.root / SCRIPT
        target.parent.mkdir(exist_ok=True)
        shutil.copy(HARNESS_ROOT / SCRIPT, target)

    def bootstrap(
        self,
        *arguments: str,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        python: str = sys.executable,
        before: tuple[str, ...] = (),
        timeout: float = 120,
    ) -> Completed:
        """Run the script with this interpreter, from anywhere, through the commands `before`."""
        argv = [*before, str(self.root / SCRIPT), "--python", python, *arguments]
        done = subprocess.run(
            argv,
            cwd=cwd or self.root,
            env=self.environment(env),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout,
        )
        return Completed(tuple(argv), done.returncode, done.stdout, done.stderr)

    def up(self, *arguments: str, env: Mapping[str, str | None] | None = None) -> Completed:
        """Make and start the cluster, without the reset."""
        return self.run("stack-up", *arguments, command="harness", env=env, timeout=120)

    @property
    def stack(self) -> Path:
        """The folder of the log and of the way to the data."""
        return self.root / "test/.stack"

    @property
    def data(self) -> Path:
        """The data folder's real path."""
        return (self.stack / "data").resolve()

    @property
    def record(self) -> dict[str, Any]:
        """What the cluster's own record says."""
        found: dict[str, Any] = json.loads((self.data / "pgharness.json").read_text())
        return found

    @property
    def lease(self) -> dict[str, Any]:
        """What the state folder says of this worktree."""
        return next(lease for lease in leases(self.state) if lease["worktree"] == str(self.root.resolve()))

    def variables(self) -> dict[str, str]:
        """Return test/.env's lines by a reading of our own."""
        lines = (self.root / "test/.env").read_text().splitlines()
        return {name: value.strip("'") for name, _, value in (line.partition("=") for line in lines)}

    def connect(self, variable: str = "MAINTENANCE_DATABASE_URL", database: str = "") -> Any:
        """Connect by a DSN of test/.env, to another database where one is named."""
        import psycopg

        changes: dict[str, Any] = {"dbname": database} if database else {}
        return psycopg.connect(self.variables()[variable], autocommit=True, connect_timeout=10, **changes)

    def value(self, sql: str, variable: str = "MAINTENANCE_DATABASE_URL", database: str = "") -> Any:
        """Run one query and return its only value."""
        with self.connect(variable, database) as connection:
            ((value,),) = connection.execute(sql.encode()).fetchall()
        return value

    def execute(self, sql: str) -> None:
        """Run statements as the superuser."""
        with self.connect() as connection:
            connection.execute(sql.encode())

    def postmaster(self) -> int:
        """Return the pid in the data folder's own pid file."""
        return int((self.data / "postmaster.pid").read_text().split("\n")[0])


def leases(state: Path) -> list[dict[str, Any]]:
    """Return every lease in a state folder."""
    return [json.loads(path.read_text()) for path in state.glob("*.json")]


def is_running(pid: int) -> bool:
    """Say whether a process is there and no zombie."""
    return bool(start_time(pid))


def wait_until_gone(pid: int, seconds: float = 20) -> None:
    """Wait for a process to end."""
    deadline = time.monotonic() + seconds
    while is_running(pid):
        assert time.monotonic() < deadline, f"pid {pid} still runs"
        time.sleep(0.01)


def postmasters_below(folder: Path) -> list[int]:
    """Return the postmasters whose command line names a data folder below `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if b"-D" in words and words[words.index(b"-D") + 1].startswith(os.fsencode(folder)) and start_time(int(entry.name)):
                    found.append(int(entry.name))
    return found


def end_all(folder: Path) -> None:
    """End, in the server's own way, every server of a data folder below `folder`: the tests' own and nobody else's."""
    for pid in postmasters_below(folder):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGQUIT)
        wait_until_gone(pid)
