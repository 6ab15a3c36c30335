"""One run at a time per database: an advisory lock in the maintenance database, held by the session that acts."""

from __future__ import annotations

import hashlib
import json
import os
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
_MARK = "pgharness holder "


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


def acquire(connection: Connection, names: Sequence[str], *, worktree: Path, wait: float, say: Callable[[str], None]) -> None:
    """Take the locks of `names` for as long as `connection` lives, in sorted order so that two runs cannot deadlock.

    Polls, since a waiter blocked in the server would deadlock with CREATE INDEX CONCURRENTLY. Says who holds a lock;
    raises ResetFailed after `wait` seconds.
    """
    from harness.errors import redact

    deadline = time.monotonic() + wait
    mine = json.dumps(Holder(os.getpid(), quote(str(worktree)), time.time()))
    # The comment tells other worktrees who holds the lock: it stands in pg_stat_activity as long as this session is idle.
    statement = f"/* {_MARK}{mine} */ SELECT pg_try_advisory_lock({{}})"
    for name in sorted(names):
        said = False
        while connection.execute(statement.format(lock_key(name)).encode()).fetchone() != (True,):
            found = holder(connection, name)
            who = f"is in use by another run ({redact(str(found))})" if found else "is in use by another run"
            if time.monotonic() >= deadline:
                raise ResetFailed(f"database {name!r} {who}; waited {wait:.0f} s", next="Wait for it to end, or give a longer --wait.")
            if not said:
                say(f"database {name!r} {who}; waiting up to {wait:.0f} s")
                said = True
            time.sleep(min(0.1, max(0.0, deadline - time.monotonic())))


def holder(connection: Connection, name: str) -> Holder | None:
    """Return who holds the lock of the database `name`; None when it is free or its holder cannot be read."""
    key = lock_key(name) & 0xFFFFFFFFFFFFFFFF
    row = connection.execute(
        """SELECT a.query FROM pg_locks l JOIN pg_stat_activity a USING (pid)
           WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
           AND l.classid = %s::bigint::oid AND l.objid = %s::bigint::oid""",
        [key >> 32, key & 0xFFFFFFFF],
    ).fetchone()
    text = (row[0] or "").partition(_MARK)[2].partition(" */")[0] if row else ""
    try:
        pid, worktree, since = json.loads(text)
    except ValueError:
        return None
    return Holder(pid, unquote(worktree), since)
