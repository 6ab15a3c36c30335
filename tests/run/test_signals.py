"""RUN-04: a signal ends the run and all that it started; nothing is left, and no later package starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.run.project import Project, alive, wait_until

SLEEPER = """
import os, pathlib, signal, subprocess, sys, time
STUBBORN = {stubborn}
def test_it():
    ignore = (lambda: [signal.signal(s, signal.SIG_IGN) for s in (2, 15, 1)]) if STUBBORN else None
    for new_session in (False, True):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", "{mark}"], start_new_session=new_session, preexec_fn=ignore)
    if STUBBORN:
        ignore()
    pathlib.Path("{mark}").touch()
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        time.sleep(0.1)
"""


class Sleeping:
    """A run whose first package sleeps with two grandchildren, one of them in a session of its own."""

    def __init__(self, root: Path, *, stubborn: bool = False, grace: float = 2.0, **popen: Any) -> None:
        self.mark = f"mark-{uuid.uuid4().hex}"
        self.project = Project(root, "tests/sleepy", "tests/later", toml=f"[run]\ngrace = {grace}\n")
        self.project.package("tests/sleepy", SLEEPER.format(mark=self.mark, stubborn=stubborn))
        self.project.package("tests/later", "import pathlib\ndef test_it(): pathlib.Path('later').touch()\n")
        self.process = self.project.start("--json", "document.json", **popen)
        try:
            wait_until((self.project.root / self.mark).exists, 30)
            wait_until(lambda: len(alive(self.mark)) >= 2, 10)
        except BaseException:
            self.process.kill()
            raise

    def ended(self, within: float) -> int:
        """Return the exit code; assert that it came in time and that nothing of the run is left."""
        started = time.monotonic()
        self.process.communicate(timeout=within + 20)
        assert time.monotonic() - started < within
        assert alive(self.mark) == []
        assert not (self.project.root / "later").exists()
        return self.process.returncode


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("signum", SIGNALS, ids=[signum.name for signum in SIGNALS])
def test_a_signal_to_the_command_alone_ends_everything(tmp_path: Path, signum: int) -> None:
    """The exit code is 128 and the signal; the document tells which package was cut, and which never started."""
    run = Sleeping(tmp_path / "p")
    run.process.send_signal(signum)
    assert run.ended(10) == 128 + signum
    text = (run.project.root / "document.json").read_text()
    assert f"interrupted by {signal.Signals(signum).name}" in text
    assert '"not-run"' in text


def test_ctrl_c_reaches_the_whole_group_and_ends_it_once(tmp_path: Path) -> None:
    """A terminal signals the foreground group: us; the children hear it from us."""
    run = Sleeping(tmp_path / "p")
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.ended(10) == 130


def test_an_ignored_interrupt_is_heard_all_the_same(tmp_path: Path) -> None:
    """A background job of a non-interactive shell starts with SIGINT ignored."""
    run = Sleeping(tmp_path / "p", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    run.process.send_signal(signal.SIGINT)
    assert run.ended(10) == 130


def test_what_ignores_the_signal_is_killed_after_the_grace(tmp_path: Path) -> None:
    """Package and grandchildren that ignore every polite signal are gone after grace."""
    run = Sleeping(tmp_path / "p", stubborn=True, grace=1.0)
    run.process.send_signal(signal.SIGTERM)
    assert run.ended(6) == 143


def test_a_second_signal_ends_the_wait(tmp_path: Path) -> None:
    """Whoever presses Ctrl-C twice does not want to wait for the grace to pass."""
    run = Sleeping(tmp_path / "p", stubborn=True, grace=60.0)
    run.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert run.process.poll() is None
    run.process.send_signal(signal.SIGINT)
    assert run.ended(6) == 130


def test_a_killed_run_leaves_nothing_behind(tmp_path: Path) -> None:
    """SIGKILL lets us do nothing: the watchman ends the package, its grandchildren, and removes the run's folder."""
    run = Sleeping(tmp_path / "p", env={"TMPDIR": str(tmp_path)})
    assert list(tmp_path.glob("harness-run-*")) != []
    run.process.kill()
    run.process.communicate(timeout=10)
    wait_until(lambda: alive(run.mark) == [] and list(tmp_path.glob("harness-run-*")) == [], 10)


def test_a_package_is_given_time_to_clean_up(tmp_path: Path) -> None:
    """An interrupted pytest runs its teardown, and what was over by then is in the document."""
    project = Project(tmp_path / "p", "tests/it")
    source = "import pathlib, pytest, time\n@pytest.fixture\ndef f():\n    yield\n    pathlib.Path('clean').touch()\n"
    source += "def test_quick(): pass\ndef test_slow(f):\n    pathlib.Path('begun').touch()\n    time.sleep(60)\n"
    project.package("tests/it", source)
    with project.start("--json", "document.json") as process:
        wait_until((project.root / "begun").exists, 30)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert process.returncode == 130
    assert (project.root / "clean").exists()
    assert "test_quick" in (project.root / "document.json").read_text()


def test_what_a_package_leaves_running_is_named_and_ended(tmp_path: Path) -> None:
    """A process that outlives its package, detached or not, does not meet the next one."""
    mark = f"mark-{uuid.uuid4().hex}"
    project = Project(tmp_path / "p", "tests/a", "tests/b")
    start = f"[sys.executable, '-c', 'import time; time.sleep(300)', '{mark}'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"
    project.package(
        "tests/a",
        f"import subprocess, sys\ndef test_it():\n    for new in (False, True):\n        subprocess.Popen({start}, start_new_session=new)\n",
    )
    look = f"import pathlib\ndef test_it():\n    lines = [p.read_bytes() for p in pathlib.Path('/proc').glob('[0-9]*/cmdline') if p.exists()]\n    assert not any(b'{mark}' in line for line in lines)\n"
    project.package("tests/b", look)
    found = project.packages(code=0)
    assert [mark in line for line in found["tests/a"]["processes"]] == [True, True]
    assert found["tests/b"]["processes"] == []
    assert alive(mark) == []


def test_a_server_that_was_started_before_the_run_survives_it(tmp_path: Path) -> None:
    """Only what a package started is ended."""
    project = Project(tmp_path / "p", "tests/a")
    project.package("tests/a", "def test_it(): pass\n")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"]) as server:
        project.run().expect(0)
        assert server.poll() is None
        server.kill()
