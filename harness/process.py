"""Run commands, captured or detached; signals; and the processes that the machine shows us."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, NamedTuple, NoReturn, Protocol

if TYPE_CHECKING:
    import subprocess

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TERM, KILL = signal.SIGTERM, signal.SIGKILL

LINUX = sys.platform == "linux"


class Completed(NamedTuple):
    """A captured command that ended, or was ended at its time limit; `returncode` is negative for a signal."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
    timed_out: bool


class Process(Protocol):
    """A child of ours: Popen's, or one that became ours by adoption."""

    pid: int
    returncode: int | None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, negative for a signal; subprocess.TimeoutExpired after `timeout` seconds."""


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
    pass_fds: Sequence[int] = (),
) -> Completed:
    """Run `argv` captured, in a session of its own, as `user` and `group` when they are given (which takes root).

    Output goes through files, so neither its size nor a grandchild that keeps it open can block. At the time limit, and when
    a signal interrupts us, it is killed with all it started. Raises OSError when `argv` cannot be started.
    """
    import subprocess
    import tempfile

    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(input or b"")
        stdin.seek(0)
        child: subprocess.Popen[bytes] | None = None
        try:
            with signals_deferred():
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
                    pass_fds=pass_fds,
                )
            ended = wait_for(child, timeout)
        finally:
            if child is not None and child.returncode is None:
                with signals_deferred():
                    _kill_tree(child.pid)
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
    with open(stdout_path, "ab") as output, signals_deferred():  # noqa: PTH123  # pathlib costs start-up time here
        between = os.fork()
        if between == 0:
            # Only an orphan is adopted by init; a plain child would stay ours, and end as our zombie.
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
    if LINUX:
        found = _read_process(pid)
        return found is not None and found.state not in "ZX"
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        return False
    return True


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Hold INT, TERM and HUP back while the body runs, and deliver the first of them afterwards.

    Handlers are swapped rather than signals blocked, because a child would inherit the block.
    """
    import threading

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []

    def hold(signum: int, _frame: FrameType | None) -> None:
        held.append(signum)

    try:
        # A stack: all handlers come back, also when one that is back already raises.
        with ExitStack() as restored:
            for signum in STOP_SIGNALS:
                restored.callback(signal.signal, signum, signal.signal(signum, hold) or signal.SIG_DFL)
            yield
    finally:
        if held:
            signal.raise_signal(held[0])


@contextmanager
def told_of_dead_children(handler: Callable[[], None]) -> Iterator[None]:
    """Call `handler` in the main thread whenever a child of ours has died, adopted ones included."""
    previous = signal.signal(signal.SIGCHLD, lambda *_: handler())
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, previous)


def ignore_stop_signals() -> None:
    """Let INT, TERM and HUP pass this process by."""
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


def start(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: IO[bytes] | None = None, pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start `argv` in a session of its own, on our own stdin and outputs, or with both outputs in `output`."""
    import subprocess

    def inherited(name: str) -> int | None:
        # A stream that was closed when we started may by now be another file's descriptor: no child shall have that.
        return subprocess.DEVNULL if getattr(sys, f"__{name}__") is None else None

    stdin, stdout, stderr = inherited("stdin"), output or inherited("stdout"), output or inherited("stderr")
    with signals_deferred():
        return subprocess.Popen(
            list(argv), stdin=stdin, stdout=stdout, stderr=stderr, env=dict(env), cwd=cwd, start_new_session=True, pass_fds=pass_fds
        )


def signal_name(number: int) -> str:
    """Return a signal's name, also for one that this machine has no name for."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def command_line(pid: int) -> str:
    """Return what `pid` was started as, for a person; empty when it is gone or cannot be seen."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def wait_for(child: Process, timeout: float | None) -> bool:
    """Wait until `child` ends; False when `timeout` seconds passed first. Sleeps in the kernel where that is possible."""
    import subprocess

    if timeout is not None and child.returncode is None and hasattr(os, "pidfd_open"):
        import select

        with suppress(OSError):  # a kernel before 5.3, or a sandbox that forbids it
            descriptor = os.pidfd_open(child.pid)
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


def signal_group(leader: int, signum: int) -> None:
    """Send `signum` to a whole process group, if it is still there."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signum)


def _kill_tree(leader: int) -> None:
    """Kill a child of ours that was not waited for yet, its session and its descendants."""
    tree = [found for found in processes() if found.session == leader]
    for found in {*tree, *with_descendants({leader})}:
        signal_pid(found.pid, signal.SIGKILL)
    signal_group(leader, signal.SIGKILL)


def with_descendants(roots: set[int]) -> list[Found]:
    """Return the running ones among `roots` and all that descends from them."""
    everything = processes()
    known = set(roots)
    while grown := {found.pid for found in everything if found.parent in known} - known:
        known |= grown
    return [found for found in everything if found.pid in known and found.state not in "ZX"]


def processes() -> list[Found]:
    """Return every process that this machine shows us; nothing where there is no /proc."""
    if not LINUX:
        return []
    return [found for name in os.listdir("/proc") if name.isdigit() and (found := _read_process(int(name)))]  # noqa: PTH208  # a hot loop


def _read_process(pid: int) -> Found | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:  # noqa: PTH123  # a hot loop
            fields = stream.read().rpartition(")")[2].split()
    except OSError:
        return None
    return Found(pid, parent=int(fields[1]), session=int(fields[3]), state=fields[0], started=int(fields[19]))


def replace(argv: Sequence[str], *, env: Mapping[str, str]) -> NoReturn:
    """Become `argv`: it gets our terminal, signals and exit code."""
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_DFL)
    os.execve(argv[0], list(argv), dict(env))  # noqa: S606  # an argument list, no shell
