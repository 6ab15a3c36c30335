"""The server process of a data folder: read who it is, prove it before any signal, start it, stop it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from harness import process
from harness.errors import StackFailure
from harness.servers import Account, Server, child_environment

START_TIMEOUT = 120.0
"""Seconds; a server that was killed may have much to recover."""
STOP_TIMEOUT = 60.0
NOBODY = 2**31 - 1
"""A pid that no system gives."""
_FAST, _IMMEDIATE = 2, 3  # SIGINT and SIGQUIT, the server's own words for them
_CLOCKS_MAY_DIFFER = 10.0  # seconds between the process's start and what the server wrote


class Postmaster(NamedTuple):
    """What postmaster.pid says."""

    pid: int
    data: str
    epoch: float
    port: int
    is_ready: bool


def read(data: Path) -> Postmaster | None:
    """Return what the data folder's postmaster.pid says; None when there is none or it is not written yet."""
    try:
        lines = (data / "postmaster.pid").read_text(encoding="utf-8", errors="surrogateescape").split("\n")
        return Postmaster(int(lines[0]), lines[1], float(lines[2]), int(lines[3]), len(lines) > 7 and lines[7].strip() == "ready")  # noqa: PLR2004  # status, since 10
    except (OSError, ValueError, IndexError):
        return None


def running(data: Path, recorded: tuple[int, str]) -> Postmaster | None:
    """Return the running server of `data`, proven: by the recorded (pid, start), else by all that the system knows of it.

    None for a pid file that outlived its server, its pid perhaps somebody else's by now, and for one that was copied along
    with another server's folder.
    """
    found = read(data)
    started = start_of(found.pid) if found else ""
    if found is None or not started or not _works_in(found, data):
        return None
    if (found.pid, started) == recorded or (
        is_postmaster(found.pid, found.data) and abs(_began(started) - found.epoch) < _CLOCKS_MAY_DIFFER
    ):
        return found
    return None


def _works_in(found: Postmaster, data: Path) -> bool:
    """Say whether the process works in this very folder: where the system hides that, whether the pid file was written for it."""
    try:
        return Path(f"/proc/{found.pid}/cwd").samefile(data)
    except OSError:
        return found.data == str(data) or not Path(found.data).exists()


def disown_stale_file(data: Path) -> None:
    """Take the pid out of a pid file that another program has by now, or a dead server that nobody has waited for.

    The server would take either for its twin and refuse to start. The rest of the file stays: by it the server sees whether
    memory of the former one is still in use.
    """
    found = read(data)
    if found and process.signal_pid(found.pid, 0) and not is_postmaster(found.pid, found.data):
        path = data / "postmaster.pid"
        _, rest = path.read_bytes().split(b"\n", 1)
        path.write_bytes(b"%d\n%s" % (NOBODY, rest))


def start_of(pid: int) -> str:
    """Return what tells this process from a later one with its pid; empty when it does not run."""
    if pid <= 0 or not process.is_alive(pid):
        return ""
    if sys.platform != "linux":
        return _ps(pid, "lstart")
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
    return f"{boot}:{ticks}"


def _began(started: str) -> float:
    """Return when a process began, in seconds since the epoch."""
    if sys.platform != "linux":
        return time.mktime(time.strptime(started, "%c"))
    boot = next(line.split()[1] for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    return int(boot) + int(started.rpartition(":")[2]) / os.sysconf("SC_CLK_TCK")


def is_postmaster(pid: int, data: str) -> bool:
    """Say whether the process's command line is a postgres started on exactly this data folder."""
    if sys.platform != "linux":
        line = f"{_ps(pid, 'command')} "
        return "postgres" in line.partition(" -D ")[0] and f" -D {data} " in line
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return os.path.basename(words[0]).startswith((b"postgres", b"postmaster")) and os.fsencode(data) in words[1:]  # noqa: PTH119  # bytes


def folder_of(pid: int) -> str | None:
    """Return where the process's working folder is now, empty when that is deleted; None when the system does not say."""
    try:
        where = os.readlink(f"/proc/{pid}/cwd")  # noqa: PTH115  # a deleted folder's text matters, not its path
    except OSError:
        return None
    return "" if where.endswith(" (deleted)") else where


def _ps(pid: int, column: str) -> str:
    done = process.run(["ps", "-ww", "-o", f"{column}=", "-p", str(pid)], env=child_environment(), cwd=Path("/"), timeout=20)
    return done.stdout.strip()


def start(server: Server, account: Account, data: Path, options: Sequence[str], log: Path) -> tuple[int, str]:
    """Start the server in a session of its own; return its pid and start, at once."""
    argv = [*account.prefix, str(server.programs / "postgres"), "-D", str(data), *options]
    try:
        pid = process.spawn_detached(argv, env=child_environment(), cwd=Path("/"), stdout_path=log, user=account.user, group=account.group)
    except OSError as error:
        raise StackFailure(
            f"{error.filename} cannot be {'started' if error.filename == argv[0] else 'written'}: {error.strerror}",
            next="Mend it and run the command again.",
        ) from error
    return pid, start_of(pid)


def wait_until_ready(data: Path, pid: int, log: Path, offset: int) -> None:
    """Wait until the server's own pid file says ready. Raises StackFailure with the log's reason when it ends or takes too long."""
    deadline = time.monotonic() + START_TIMEOUT
    pause = 0.001
    while True:
        found = read(data)
        if found and found.pid == pid and found.is_ready:
            return
        if not process.is_alive(pid):
            raise StackFailure(f"the server in {str(data)!r} did not start: {reason(log, offset)}", next=_advice(data, log))
        if time.monotonic() > deadline:
            raise StackFailure(f"the server in {str(data)!r} is not ready after {START_TIMEOUT:.0f} s", next=f"Look at {str(log)!r}.")
        time.sleep(pause)
        pause = min(pause * 1.1, 0.02)


def _advice(data: Path, log: Path) -> str:
    path = data / "postmaster.pid"
    # Not for us to remove: by it a server sees that another one's memory is still in use.
    torn = f"Once no postgres works on that folder, remove {str(path)!r}, which is torn. " if path.exists() and read(data) is None else ""
    return f"{torn}The whole log is {str(log)!r}."


def reason(log: Path, offset: int) -> str:
    """Return the log's last fatal line since `offset`, else its last line."""
    with log.open("rb") as stream:
        stream.seek(offset)
        lines = [line.strip() for line in stream.read()[-65536:].decode(errors="replace").splitlines() if line.strip()]
    grave = [line for line in lines if any(f"{level}:" in line for level in ("FATAL", "PANIC", "ERROR"))]
    return (grave or lines or ["it says nothing"])[-1]


def stop(pid: int, started: str, data: str, *, at_once: bool = False) -> bool:
    """Stop a server cleanly, or `at_once`, as also where it hangs; False when this pid is not, or no longer, that server.

    Raises StackFailure when it does not end.
    """
    if not started or start_of(pid) != started or not is_postmaster(pid, data):
        return False
    for signum, seconds in (() if at_once else ((_FAST, STOP_TIMEOUT),)) + ((_IMMEDIATE, 10.0),):
        if start_of(pid) == started:
            process.signal_pid(pid, signum)
        if _ends(pid, started, seconds):
            return True
    raise StackFailure(f"the server of {data!r} (pid {pid}) does not stop", next=f"Look at what it waits for, or end pid {pid} yourself.")


def _ends(pid: int, started: str, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while start_of(pid) == started:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True
