"""Sessions that are opened side by side, work on several databases at once, and end in order when a signal comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from harness import database
from harness.background import Background
from harness.errors import HarnessError
from harness.lock import worker_key
from harness.process import signals_deferred
from harness.targets import Dsn

if TYPE_CHECKING:
    from harness.database import Connection

Job = Callable[["Connection"], object]

PATIENCE = 0.05
"""Seconds between two attempts to take a lock, or to cancel what an interrupted job is at."""


class AbandonedError(Exception):
    """Nobody waits for the session any more."""


class Opening:
    """A session that is being opened in the background."""

    def __init__(self, dsn: Dsn, purpose: str) -> None:
        self._lock = threading.Lock()
        self._session: Connection | None = None
        self._is_abandoned = False
        # A daemon: nobody waits for a server that does not answer when the run is over.
        self._opening = Background(partial(self._open, dsn, purpose), daemon=True)

    def _open(self, dsn: Dsn, purpose: str) -> Connection:
        session = database.connect(dsn, purpose=purpose)
        with self._lock:
            if not self._is_abandoned:
                self._session = session
                return session
        session.close()
        raise AbandonedError

    def session(self) -> Connection:
        """Return the session once it is open; raises what `database.connect` raises, and AbandonedError."""
        while not self._opening.wait(PATIENCE):
            if self._is_abandoned:
                raise AbandonedError
        return self._opening.result()

    def abandon(self) -> None:
        """Wait no longer for a session that is not open yet, nor let it be opened."""
        with self._lock:
            self._is_abandoned = True

    def close(self) -> None:
        """Close the session; one that is not open yet is abandoned."""
        self.abandon()
        if self._session is not None:
            self._session.close()


class Crew:
    """One session per database: the caller's own for the first, the others opened in the background by `call`.

    `dsn` is where the others connect; without one every job runs on the caller's own session, one after another.
    """

    def __init__(self, names: Sequence[str], dsn: Dsn | None) -> None:
        self._names = names
        self._dsn = dsn if len(names) > 1 else None
        self._others: list[Opening] = []
        self._preparing: Background[None] | None = None
        self._is_closing = False

    def call(self) -> None:
        """Begin to open the other sessions, unless that was done."""
        if self._dsn is not None and not self._others:
            self._others = [Opening(self._dsn, "reset") for _ in self._names[1:]]

    def begin(self, prelude: Job) -> None:
        """Let the other sessions lock their databases, which takes the run's own locks, and do `prelude` on the last one.

        It is done while the caller asks the server whether anything may be done at all.
        """
        self.call()
        if self._others:
            self._preparing = Background(partial(self._prepare, prelude))

    def _prepare(self, prelude: Job) -> None:
        sessions = [other.session() for other in self._others]
        for session, name in zip(sessions, self._names[1:], strict=True):
            while session.execute(f"SELECT pg_try_advisory_lock({worker_key(name)})".encode()).fetchone() != (True,):
                if self._is_closing:
                    return
                time.sleep(PATIENCE)
        prelude(sessions[-1])

    def run(self, own: Connection, jobs: Sequence[Job], *, on_interrupt: Callable[[Connection], object]) -> None:
        """Run one job per database at once, the first on the caller's `own` session, each to its end; then raise the first one's failure.

        A signal cancels what is at work in the server, and calls `on_interrupt` with a session of its own, until every
        job has ended.
        """
        if self._dsn is None:
            for job in jobs:
                job(own)
            return
        if self._preparing:
            self._preparing.result()
        sessions = [own, *(other.session() for other in self._others)]
        working: list[Background[object]] = []
        try:
            with signals_deferred():
                for job, session in zip(jobs, sessions, strict=True):
                    working.append(Background(partial(job, session)))
            for one in working:
                one.wait()
        except BaseException:
            _stop(working, sessions, self._dsn, on_interrupt)
            raise
        for one in working:
            one.result()

    def close(self) -> None:
        """Close the added sessions; a later `call` opens others."""
        self._is_closing = True
        for other in self._others:
            other.abandon()
        if self._preparing:
            self._preparing.wait()
        for other in self._others:
            other.close()
        self._others, self._preparing, self._is_closing = [], None, False


def _stop(
    working: Sequence[Background[object]], sessions: Sequence[Connection], dsn: Dsn, on_interrupt: Callable[[Connection], object]
) -> None:
    while not all(one.is_over for one in working):
        for session in sessions:
            with suppress(database.Error):
                session.cancel_safe()
        with suppress(database.Error, HarnessError), database.connect(dsn, purpose="reset") as session:
            on_interrupt(session)
        for one in working:
            one.wait(PATIENCE)
