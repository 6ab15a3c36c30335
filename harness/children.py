"""A package's process, ended together with everything that it started; and the watchman who sees to it if we are killed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NoReturn, Protocol

from harness.errors import Interrupted
from harness.process import (
    KILL,
    LINUX,
    TERM,
    Found,
    Process,
    ignore_stop_signals,
    processes,
    signal_group,
    signal_pid,
    signals_deferred,
    start,
    told_of_dead_children,
    wait_for,
    with_descendants,
)

MARK = "HARNESS_RUN"
"""The private variable by which the watchman knows a run's processes, wherever they went; nested runs add to it."""

KILL_SECONDS = 5.0
"""How long to go on killing what keeps forking; a process in an uninterruptible sleep outlives even that."""

_PR_SET_CHILD_SUBREAPER = 36


class Starter(Protocol):
    """Starts a command in a session of its own: as a new program, or forked from a warm interpreter."""

    def __call__(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: IO[bytes] | None) -> Process:
        """Return the process; raises OSError when it cannot be started."""


class NotStarted(Exception):
    """A program could not be started, and why."""


@contextmanager
def running(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, grace: float, output: IO[bytes] | None = None, starter: Starter = start
) -> Iterator[Child]:
    """Have `starter` start `argv` in a session and process group of its own; leaving the context ends all that it started.

    It has our own stdin and outputs, or both its outputs go to `output`. On Linux we adopt its orphans meanwhile, so that what
    left the group is found too; elsewhere the group is all we know. Raises NotStarted when it cannot be started.
    """
    child: Child | None = None
    signum: int = TERM
    before = _children()
    _adopt_orphans(adopt=True)
    try:
        with signals_deferred():
            try:
                child = Child(starter(argv, env=env, cwd=cwd, output=output), before, grace)
            except OSError as error:
                raise NotStarted(f"{argv[0]} cannot be started: {error.strerror}") from error
        # A dead server that stays a zombie would look alive to whoever starts it again.
        with told_of_dead_children(child.reap):
            yield child
    except Interrupted as interrupt:
        signum = interrupt.signum
        raise
    finally:
        if child is not None:
            child.end(signum)
        _adopt_orphans(adopt=False)


class Child:
    """A package's process as `running` hands it out."""

    def __init__(self, popen: Process, before: set[int], grace: float) -> None:
        self.pid = popen.pid
        self._popen = popen
        self._before = before
        self._grace = grace

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._popen.returncode

    def wait(self, timeout: float | None) -> bool:
        """Wait for the child itself; False when `timeout` seconds passed first."""
        return wait_for(self._popen, timeout)

    def reap(self) -> None:
        """Wait for the adopted processes that have died."""
        _reap(self._before | {self.pid})

    def left(self) -> list[Found]:
        """Return what the child started and left running, once it has ended itself."""
        self.reap()
        roots = _children() - self._before - {self.pid}
        return with_descendants(roots) if roots else []

    def end(self, signum: int = TERM) -> None:
        """Send `signum` to the group, wait `grace` seconds for all of it, then kill what is left; a second signal ends the wait."""
        try:
            deadline = time.monotonic() + self._grace
            if self.returncode is None:
                signal_group(self.pid, signum)
                self.wait(self._grace)
            self._end_rest(deadline)
        except Interrupted:
            pass  # said twice: now at once; the first signal is already on its way up
        finally:
            with signals_deferred():
                self._kill()

    def _end_rest(self, deadline: float) -> None:
        told: set[int] = set()
        while time.monotonic() < deadline and (left := self.left() if self.returncode is not None else []):
            for found in left:
                if found.pid not in told:
                    told.add(found.pid)
                    signal_pid(found.pid, TERM)
            time.sleep(0.01)

    def _kill(self) -> None:
        if self.returncode is None or not LINUX:
            signal_group(self.pid, KILL)
            self.wait(KILL_SECONDS)
        deadline = time.monotonic() + KILL_SECONDS
        while time.monotonic() < deadline and (left := self.left()):
            for found in left:
                signal_pid(found.pid, KILL)
            time.sleep(0.001)


@contextmanager
def watchman(mark: str, folder: Path) -> Iterator[None]:
    """Keep a process of ours beside the run that, if we are killed, kills what bears `mark` and removes `folder`."""
    reader, writer = os.pipe()
    pid = 0
    try:
        with signals_deferred():
            pid = os.fork()
            if pid == 0:
                _watch(reader, mark, folder)
        os.close(reader)
        yield
    finally:
        if pid:
            with signals_deferred():
                os.write(writer, b".")
                os.close(writer)
                os.waitpid(pid, 0)


def _watch(reader: int, mark: str, folder: Path) -> NoReturn:
    import shutil

    try:
        os.setsid()
        ignore_stop_signals()
        # Our copy of a connection's socket would keep the server from seeing that its client died.
        os.dup2(reader, 0)
        os.closerange(1, max(map(int, os.listdir("/proc/self/fd" if LINUX else "/dev/fd"))) + 1)  # noqa: PTH208  # names only
        if not os.read(0, 1):
            _kill_marked(mark.encode())
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(0)


def _kill_marked(mark: bytes) -> None:
    deadline = time.monotonic() + KILL_SECONDS
    quiet = 0
    while time.monotonic() < deadline and quiet < 3:  # noqa: PLR2004  # one that was just being forked shows in the next turn
        marked = [found.pid for found in processes() if found.state not in "ZX" and found.pid != os.getpid() and _bears(found.pid, mark)]
        for pid in marked:
            signal_pid(pid, KILL)
        quiet = 0 if marked else quiet + 1
        time.sleep(0.01)


def _bears(pid: int, mark: bytes) -> bool:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(variable.startswith(f"{MARK}=".encode()) and mark in variable for variable in variables)


def _adopt_orphans(*, adopt: bool) -> None:
    if LINUX:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)


def _reap(spared: set[int]) -> None:
    for pid in _children() - spared:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _children() -> set[int]:
    """Return our own children, dead ones that nobody waited for included."""
    if not LINUX:
        return set()
    try:
        lists = [Path(f"/proc/self/task/{task}/children").read_text() for task in os.listdir("/proc/self/task")]  # noqa: PTH208  # names only
    except OSError:  # a kernel without these lists, or a thread that just ended
        me = os.getpid()
        return {found.pid for found in processes() if found.parent == me}
    return {int(pid) for pids in lists for pid in pids.split()}
