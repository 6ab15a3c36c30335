"""One run at a time per database: an advisory lock in the maintenance database, held by the session that acts."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote

from harness.errors import ResetFailed

if TYPE_CHECKING:
    from harness.database import Connection

DEFAULT_WAIT = 600.0
"""Seconds to wait for another run before giving up."""
ORPHAN_WAIT = 15.0
"""Seconds to wait for what a killed run's sessions are still at in the server."""
PAUSE = 0.005
_MARK = "pgharness holder "
_SINCE = time.time()
"""When this command began."""
_NAME_LIMIT = 63
"""Bytes of an application_name; PostgreSQL cuts the rest."""


def purpose(worktree: Path) -> str:
    """Return what names the holder's session: pid, time and as much of the worktree's end as fits, for every role to see."""
    head = f"run {os.getpid()} {_SINCE:.0f} "
    return head + quote(str(worktree))[-(_NAME_LIMIT - len("harness ") - len(head)) :]


class Holder(NamedTuple):
    """Who holds a lock: the process, its worktree and since when (seconds since the epoch)."""

    pid: int
    worktree: str
    since: float

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"pid {self.pid} of worktree {self.worktree!r} since {since}"


def lock_key(name: str) -> int:
    """Return the 64-bit key of the database `name`."""
    return int.from_bytes(hashlib.sha256(f"pgharness:{name}".encode()).digest()[:8], "big", signed=True)


def worker_key(name: str) -> int:
    """Return the key of the lock that an added session holds while it works on the database `name`.

    A killed reset's session finishes its statement in the server after the locks of the run are gone: the next run sees
    this one and waits for it.
    """
    return lock_key(f"\0worker {name}")


def acquire(connection: Connection, names: Sequence[str], *, worktree: Path, wait: float, say: Callable[[str], None]) -> None:
    """Take the locks of `names` for as long as `connection` lives, in sorted order so that two runs cannot deadlock.

    Afterwards nobody else is at work on these databases, a killed run's sessions neither: what the server is asked from then on stays
    true. Polls, since a waiter blocked in the server would deadlock with CREATE INDEX CONCURRENTLY. Says who holds a lock; raises
    ResetFailed after `wait` seconds, and for a killed run's session after 15.
    """
    from harness.errors import redact

    ordered = sorted(names)
    attempt = f"{_comment(worktree)} SELECT {_attempt(ordered)}".encode()
    deadline, orphans_deadline, said = time.monotonic() + wait, 0.0, ""
    while finding := _finding(connection, attempt):
        if finding > 0:
            orphans_deadline = orphans_deadline or time.monotonic() + ORPHAN_WAIT
            if time.monotonic() > orphans_deadline:
                raise ResetFailed(
                    f"a killed reset's session (pid {finding}) is still at work in the server",
                    next=f"Wait for it, or end it: SELECT pg_terminate_backend({finding}).",
                )
            time.sleep(PAUSE)
            continue
        name = ordered[finding]
        found = holder(connection, name)
        who = f"is in use by another run ({redact(str(found))})" if found else "is in use by another run"
        if time.monotonic() >= deadline:
            raise ResetFailed(f"database {name!r} {who}; waited {wait:.0f} s", next="Wait for it to end, or give a longer --wait.")
        if said != name:
            say(f"database {name!r} {who}; waiting up to {wait:.0f} s")
            said = name
        time.sleep(min(0.1, max(0.0, deadline - time.monotonic())))


def _finding(connection: Connection, attempt: bytes) -> int:
    ((finding,),) = connection.execute(attempt).fetchall()
    return int(finding)


def _attempt(names: Sequence[str]) -> str:
    """Return what takes the locks in order and says how far it came, in one expression.

    -1 for the last name whose lock another run has, -2 for the one before it; the pid of a killed run's session that is still at work, or 0.
    """
    keys = ",".join(str(worker_key(name)) for name in names)
    expression = f"""coalesce((SELECT min(pid) FROM pg_lock_status() WHERE locktype = 'advisory' AND objsubid = 1 AND granted
        AND (classid::int8 << 32) | objid::int8 = ANY('{{{keys}}}'::int8[])), 0)"""  # noqa: S608  # numbers
    for number, name in enumerate(reversed(names), 1):
        # What stands in a CASE's branch is not evaluated before its condition.
        expression = f"CASE WHEN pg_try_advisory_lock({lock_key(name)}) THEN {expression} ELSE {-number} END"
    return expression


def sign(connection: Connection, worktree: Path) -> None:
    """Leave the holder's mark as the session's last statement again, before it goes idle for long."""
    connection.execute(f"{_comment(worktree)} SELECT".encode())


def _comment(worktree: Path) -> str:
    # An idle session's last statement stands in pg_stat_activity, where the name of a session has only 63 bytes.
    return f"/* {_MARK}{json.dumps(Holder(os.getpid(), quote(str(worktree)), _SINCE))} */"


def holder(connection: Connection, name: str) -> Holder | None:
    """Return who holds the lock of the database `name`; None when it is free or its holder cannot be read."""
    key = lock_key(name) & 0xFFFFFFFFFFFFFFFF
    row = connection.execute(
        """SELECT a.query, a.application_name FROM pg_locks l JOIN pg_stat_activity a USING (pid)
           WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
           AND l.classid = %s::bigint::oid AND l.objid = %s::bigint::oid""",
        [key >> 32, key & 0xFFFFFFFF],
    ).fetchone()
    return read_holder(*row) if row else None


def read_holder(query: str | None, application_name: str) -> Holder | None:
    """Return the holder that a session's last statement names in full, else the one that its name has room for."""
    text = (query or "").partition(_MARK)[2].partition(" */")[0]
    try:
        pid, worktree, since = json.loads(text)
    except ValueError:
        found = re.fullmatch(r"harness run (\d+) (\d+) (\S+)", application_name)
        if found is None:
            return None
        pid, worktree, since = int(found[1]), f"…{found[3]}", float(found[2])
    return Holder(pid, unquote(worktree), since)
