"""Run commands: captured, detached, or streamed in a process group of their own that is ended as a whole."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import subprocess

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KILL_SECONDS = 5.0
"""How long to go on killing what keeps forking; a process in an uninterruptible sleep outlives even that."""

_LINUX = sys.platform == "linux"
_PR_SET_CHILD_SUBREAPER = 36
_OUR_OWN: set[int] = set()  # children of ours that no package started, so no package's end may end them


class Completed(NamedTuple):
    """A captured command that ended, or was ended at its time limit; `returncode` is negative for a signal."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
    timed_out: bool


class Found(NamedTuple):
    """A process as the system lists it; `started` tells it from a later one with the same pid."""

    pid: int
    parent: int
    session: int
    state: str
    started: int


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    timeout: float | None,
    input: bytes | None = None,  # noqa: A002  # subprocess's own name for it
    user: str | int | None = None,
    group: str | int | None = None,
) -> Completed:
    """Run `argv` captured, in a session of its own, as `user` and `group` when they are given (which takes root).

    Output goes through files, so neither its size nor a grandchild that keeps it open can block. At the time limit, and when
    a signal interrupts us, the whole group is killed. Raises OSError when `argv` cannot be started.
    """
    import subprocess
    import tempfile

    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(input or b"")
        stdin.seek(0)
        child = subprocess.Popen(
            list(argv),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
            user=user,
            group=group,
            extra_groups=None if user is None else [],
        )
        _OUR_OWN.add(child.pid)
        try:
            ended = wait_for(child, timeout)
        finally:
            _OUR_OWN.discard(child.pid)
            if child.returncode is None:
                _signal_group(child.pid, signal.SIGKILL)
                child.wait()
        texts = []
        for stream in (stdout, stderr):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    return Completed(tuple(argv), child.returncode, texts[0], texts[1], not ended)


def spawn_detached(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    stdout_path: Path,
    user: str | int | None = None,
    group: str | int | None = None,
) -> int:
    """Start `argv` as a child of nobody, in a session of its own; both outputs are appended to `stdout_path`.

    It outlives us and is never taken for something that a package left behind. Returns its pid; raises OSError when it
    cannot be started.
    """
    import subprocess

    reader, writer = os.pipe()
    with open(stdout_path, "ab") as output:  # noqa: PTH123  # pathlib costs start-up time here
        between = os.fork()
        if between == 0:
            # Only this process's orphan is adopted by init; a plain child would stay ours and end as our zombie.
            answer = "0 70"
            try:
                child = subprocess.Popen(
                    list(argv),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=dict(env),
                    cwd=cwd,
                    start_new_session=True,
                    user=user,
                    group=group,
                    extra_groups=None if user is None else [],
                )
                answer = f"{child.pid} 0"
            except OSError as error:
                answer = f"0 {error.errno}"
            finally:
                os.write(writer, answer.encode())
                os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        pid, number = (int(word) for word in pipe.read().split())
    os.waitpid(between, 0)
    if number:
        raise OSError(number, os.strerror(number), argv[0])
    return pid


def signal_pid(pid: int, signum: int) -> bool:
    """Send `signum` to one process; False when it is gone or not ours to signal."""
    try:
        os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def is_alive(pid: int) -> bool:
    """Say whether `pid` runs; a zombie, which only waits for its parent, does not."""
    if _LINUX:
        found = _read_process(pid)
        return found is not None and found.state not in "ZX"
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        return False
    return True


def wait_for(child: subprocess.Popen[bytes], timeout: float | None) -> bool:
    """Wait until `child` ends; False when `timeout` seconds passed first. Sleeps in the kernel where that is possible."""
    import subprocess

    if timeout is not None and child.returncode is None and hasattr(os, "pidfd_open"):
        import select

        try:
            descriptor = os.pidfd_open(child.pid)
        except OSError:
            descriptor = None
        if descriptor is not None:
            try:
                poll = select.poll()
                poll.register(descriptor, select.POLLIN)
                if not poll.poll(max(timeout, 0) * 1000):
                    return False
            finally:
                os.close(descriptor)
            timeout = None
    try:
        child.wait(timeout)
    except subprocess.TimeoutExpired:
        return False
    return True


def _signal_group(leader: int, signum: int) -> bool:
    try:
        os.killpg(leader, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _processes() -> list[Found]:
    """Return every process that this machine shows us; nothing where there is no /proc."""
    if not _LINUX:
        return []
    return [found for name in os.listdir("/proc") if name.isdigit() and (found := _read_process(int(name)))]  # noqa: PTH208  # a hot loop


def _read_process(pid: int) -> Found | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:  # noqa: PTH123  # a hot loop
            fields = stream.read().rpartition(")")[2].split()
    except OSError:
        return None
    return Found(pid, parent=int(fields[1]), session=int(fields[3]), state=fields[0], started=int(fields[19]))
