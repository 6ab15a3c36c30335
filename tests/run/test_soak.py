"""Runs with random kills of package, runner and server: afterwards nothing is left, and the next run is green."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import SampleRepository, ScratchCluster
from tests.run.project import alive, wait_until

SETTINGS = """\
[databases]
application = "shop"
test = "shop_test"
e2e = "shop_e2e"
[[migrations]]
stream = "core"
directory = "migrations/core"
[packages]
test = ["tests/a", "tests/b"]
e2e = ["tests/c"]
[run]
grace = 1.0
"""
BUSY = """
import os, pathlib, subprocess, sys, time
import psycopg
URL = os.environ.get("TEST_DATABASE_URL") or os.environ["E2E_DATABASE_URL"]
HOLD = "import psycopg, sys, time; c = psycopg.connect(sys.argv[1]); c.execute('SELECT pg_advisory_lock(1)'); time.sleep(300)"
def test_busy():
    if not pathlib.Path("calm").exists():
        subprocess.Popen([sys.executable, "-c", HOLD, URL, "{mark}"], start_new_session=True)
    with psycopg.connect(URL, autocommit=True) as connection:
        pathlib.Path("begun").write_text(str(os.getpid()))
        until = time.monotonic() + (0 if pathlib.Path("calm").exists() else 2)
        while True:
            connection.execute("INSERT INTO item SELECT coalesce(max(id), 0) + 1 FROM item")
            if time.monotonic() >= until:
                break
"""
VICTIMS = ("package", "runner", "server", "interrupt", "terminate", "hang-up")
SIGNALS = {"runner": signal.SIGKILL, "interrupt": signal.SIGINT, "terminate": signal.SIGTERM, "hang-up": signal.SIGHUP}


class Soak:
    """A repository whose packages hold sessions and locks, also in processes that leave their group."""

    def __init__(self, root: Path, cluster: ScratchCluster) -> None:
        self.cluster, self.mark = cluster, f"mark-{uuid.uuid4().hex}"
        self.repository = SampleRepository(root, cluster, settings=SETTINGS)
        for name in ("a", "b", "c"):
            self.repository.package(f"tests/{name}", BUSY.format(mark=self.mark))
        cluster.execute("CREATE TABLE keep(v int); INSERT INTO keep VALUES (42)", database="shop", role="dev")
        self.oid = cluster.oid("shop")
        self.environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TMPDIR": str(root.parent)}
        self.temporary = root.parent

    def broken_run(self, victim: str, moment: float) -> None:
        """Start a run, and kill `victim` `moment` seconds after its first test began, or after its start where it never does."""
        for name in ("begun", "calm"):
            (self.repository.root / name).unlink(missing_ok=True)
        with self.repository.start("test", "--e2e", env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            if victim == "package" or moment > 1:
                wait_until(lambda: run.poll() is not None or (self.repository.root / "begun").exists(), 60)
            time.sleep(moment % 1)
            if victim == "package":
                self._kill_package()
            elif victim == "server":
                self.cluster.stop("immediate")
                self.cluster.start()
            else:
                run.send_signal(SIGNALS[victim])
            code = run.wait(60)
        # A server that is back before it is needed, and a package that was over, are no failure.
        assert code != 0 or victim in ("package", "server"), f"{victim} was killed and the run exited 0"

    def _kill_package(self) -> None:
        text = (self.repository.root / "begun").read_text()
        if text:
            try:
                os.kill(int(text), signal.SIGKILL)
            except ProcessLookupError:
                return

    def check(self) -> None:
        """Assert that nothing is left, that the application's database is as it was, and that the next run is green."""
        wait_until(lambda: alive(self.mark) == [], 10)
        wait_until(lambda: list(self.temporary.glob("harness-run-*")) == [], 10)
        sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname LIKE 'shop%' OR application_name LIKE 'harness%'"
        wait_until(lambda: self.cluster.value(sessions) == 0, 15)
        assert self.cluster.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0
        assert (self.cluster.oid("shop"), self.cluster.value("SELECT v FROM keep", database="shop")) == (self.oid, 42)
        (self.repository.root / "calm").touch()
        self.repository.run("test", "--e2e", "--no-wait", env=self.environment).expect(0, "all fine: 3 tests in 3 packages")


@pytest.fixture
def heard() -> Iterator[None]:
    """Let the runs hear every signal, also where this process was started to ignore some, as by nohup or a shell's `&`."""
    kept = {signum: signal.signal(signum, signal.SIG_DFL) for signum in SIGNALS.values() if signal.getsignal(signum) == signal.SIG_IGN}
    yield
    for signum, handler in kept.items():
        signal.signal(signum, handler)


@pytest.mark.usefixtures("heard")
def test_random_kills_leave_nothing_behind(tmp_path: Path, scratch_cluster: ScratchCluster, rounds: int) -> None:
    """No orphan, no session, no lock, no folder; the application's database untouched; the next run green."""
    soak = Soak(tmp_path / "the shop", scratch_cluster)
    chance = random.Random(20261130)
    for number in range(rounds):
        victim, moment = VICTIMS[number % len(VICTIMS)], chance.uniform(0, 3)
        try:
            soak.broken_run(victim, moment)
            soak.check()
        except AssertionError as error:
            raise AssertionError(f"round {number}: {victim} killed after {moment:.2f} s: {error}") from error
