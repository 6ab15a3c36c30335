"""Commands, captured or detached, and signals."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from harness import errors, process

ENV = {"PATH": os.environ["PATH"]}
HERE = Path(__file__).parent


def python(code: str) -> list[str]:
    """Return the command that runs `code`."""
    return [sys.executable, "-c", code]


def test_a_captured_command_tells_all() -> None:
    """Input, both outputs, exit code."""
    done = process.run(["sh", "-c", "cat; echo oops >&2; exit 3"], env=ENV, cwd=HERE, timeout=20, input=b"hello")
    assert done == process.Completed(("sh", "-c", "cat; echo oops >&2; exit 3"), 3, "hello", "oops\n", timed_out=False)


def test_a_signal_is_a_negative_code() -> None:
    """As subprocess says it."""
    assert process.run(["sh", "-c", "kill -9 $$"], env=ENV, cwd=HERE, timeout=20).returncode == -9


def test_a_time_limit_ends_a_command_with_all_it_started(tmp_path: Path) -> None:
    """A grandchild in a session of its own too."""
    code = f"import subprocess, sys, time; p = subprocess.Popen(['sleep', '300'], start_new_session=True); open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid)); time.sleep(300)"
    done = process.run(python(code), env=ENV, cwd=HERE, timeout=2)
    assert done.timed_out
    deadline = time.monotonic() + 5
    while process.is_alive(int((tmp_path / "pid").read_text())) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not process.is_alive(int((tmp_path / "pid").read_text()))


def test_a_grandchild_that_keeps_the_output_open_does_not_block(tmp_path: Path) -> None:
    """A server that a command starts inherits its outputs."""
    started = time.monotonic()
    done = process.run(["sh", "-c", f"sleep 30 & echo $! > '{tmp_path}/pid'; echo done"], env=ENV, cwd=HERE, timeout=20)
    assert (done.stdout, time.monotonic() - started < 15) == ("done\n", True)
    process.signal_pid(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_much_output_is_captured() -> None:
    """More than a pipe holds."""
    done = process.run(python("print('x' * 10_000_000)"), env=ENV, cwd=HERE, timeout=30)
    assert len(done.stdout) == 10_000_001


def test_a_program_that_is_not_there_is_an_error() -> None:
    """The caller says what it means."""
    with pytest.raises(FileNotFoundError):
        process.run(["/no/such/program"], env=ENV, cwd=HERE, timeout=1)
    with pytest.raises(FileNotFoundError):
        process.spawn_detached(["/no/such/program"], env=ENV, cwd=HERE, stdout_path=Path(os.devnull))


def test_a_detached_process_is_nobodys_child(tmp_path: Path) -> None:
    """It has a session of its own, both outputs in a file, and leaves no zombie of ours."""
    code = (
        "import os, sys, time; print(os.getsid(0) == os.getpid(), flush=True); sys.stderr.write('both'); sys.stderr.flush(); time.sleep(60)"
    )
    pid = process.spawn_detached(python(code), env=ENV, cwd=HERE, stdout_path=tmp_path / "log")
    deadline = time.monotonic() + 10
    while "both" not in (tmp_path / "log").read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (tmp_path / "log").read_text() == "True\nboth"
    assert process.is_alive(pid)
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    assert process.signal_pid(pid, signal.SIGKILL)
    while process.is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not process.is_alive(pid)


def test_what_is_gone_cannot_be_signalled() -> None:
    """And is not alive; we ourselves are."""
    gone = int(process.run(["sh", "-c", "echo $$"], env=ENV, cwd=HERE, timeout=20).stdout)
    assert not process.signal_pid(gone, 0)
    assert not process.is_alive(gone)
    assert process.is_alive(os.getpid())


def test_an_interrupt_ends_a_captured_command() -> None:
    """The signal goes on up when the command is gone."""
    handlers = {signum: signal.getsignal(signum) for signum in process.STOP_SIGNALS}
    errors.listen_for_signals()
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))
    try:
        timer.start()
        with pytest.raises(errors.Interrupted) as caught:
            process.run(["sleep", "60"], env=ENV, cwd=HERE, timeout=None)
        assert caught.value.signum == signal.SIGTERM
    finally:
        timer.cancel()
        for signum, handler in handlers.items():
            signal.signal(signum, handler)


def test_a_deferred_signal_comes_after_the_body() -> None:
    """Between starting a process and noting it, nothing may intervene."""
    handler = signal.getsignal(signal.SIGHUP)
    seen: list[str] = []
    signal.signal(signal.SIGHUP, lambda *_: seen.append("signal"))
    try:
        with process.signals_deferred():
            os.kill(os.getpid(), signal.SIGHUP)
            seen.append("body")
        assert seen == ["body", "signal"]
    finally:
        signal.signal(signal.SIGHUP, handler)


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (11, "SIGSEGV"), (250, "signal 250")])
def test_signals_have_names(number: int, name: str) -> None:
    """Also one that this machine has no name for."""
    assert process.signal_name(number) == name
