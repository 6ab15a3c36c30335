"""Sessions that are opened side by side, work on several databases at once, and end in order when a signal comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from harness import database
from harness.errors import HarnessError
from harness.lock import worker_key
from harness.targets import Dsn

if TYPE_CHECKING:
    from harness.database import Connection

Job = Callable[["Connection"], object]

PATIENCE = 0.05
"""Seconds between two attempts to take a lock, or to cancel what an interrupted job is at."""


class Opening:
    """A session that is being opened in the background."""

    def __init__(self, dsn: Dsn, purpose: str) -> None:
        self._session: Connection | None = None
        self._failure: BaseException | None = None
        self._is_closed = False
        # A daemon: nobody waits for a server that does not answer when the run is over.
        self._thread = threading.Thread(target=self._open, args=[dsn, purpose], daemon=True)
        self._thread.start()

    def _open(self, dsn: Dsn, purpose: str) -> None:
        try:
            self._session = database.connect(dsn, purpose=purpose)
        except BaseException as error:  # noqa: BLE001  # raised again where the session is asked for
            self._failure = error
        if self._is_closed:
            self.close()

    def session(self) -> Connection:
        """Return the session once it is open; raises what `database.connect` raises."""
        self._thread.join()
        if self._session is None:
            assert self._failure is not None  # noqa: S101  # one of the two is there
            raise self._failure
        return self._session

    def close(self) -> None:
        """Close the session, at the latest when it is open."""
        self._is_closed = True
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
        self._failures: list[BaseException] = []
        self._preparing: threading.Thread | None = None
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
            self._preparing = self._started(partial(self._prepare, prelude))

    def _prepare(self, prelude: Job) -> None:
        sessions = [other.session() for other in self._others]
        for session, name in zip(sessions, self._names[1:], strict=True):
            while session.execute(f"SELECT pg_try_advisory_lock({worker_key(name)})".encode()).fetchone() != (True,):
                if self._is_closing:
                    return
                time.sleep(PATIENCE)
        prelude(sessions[-1])

    def _started(self, step: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=self._caught, args=[step])
        thread.start()
        return thread

    def _caught(self, step: Callable[[], object]) -> None:
        try:
            step()
        except BaseException as error:  # noqa: BLE001  # raised again in the main thread
            self._failures.append(error)

    def run(self, own: Connection, jobs: Sequence[Job], *, on_interrupt: Callable[[Connection], object]) -> None:
        """Run one job per database at once, the first on the caller's `own` session, each to its end; then raise the first failure.

        A signal cancels what is at work in the server, and calls `on_interrupt` with a session of its own, until every
        job has ended.
        """
        if self._dsn is None:
            for job in jobs:
                job(own)
            return
        if self._preparing:
            self._preparing.join()
        self._raise()
        sessions = [own, *(other.session() for other in self._others)]
        threads: list[threading.Thread] = []
        try:
            for job, session in zip(jobs, sessions, strict=True):
                threads.append(self._started(partial(job, session)))
            for thread in threads:
                thread.join()
        except BaseException:
            self._stop(threads, sessions, self._dsn, on_interrupt)
            raise
        self._raise()

    def _raise(self) -> None:
        if self._failures:
            failure, self._failures = self._failures[0], []
            raise failure

    def _stop(
        self,
        threads: Sequence[threading.Thread],
        sessions: Sequence[Connection],
        dsn: Dsn,
        on_interrupt: Callable[[Connection], object],
    ) -> None:
        while any(thread.is_alive() for thread in threads):
            for session in sessions:
                with suppress(database.Error):
                    session.cancel_safe()
            with suppress(database.Error, HarnessError), database.connect(dsn, purpose="reset") as session:
                on_interrupt(session)
            for thread in threads:
                thread.join(PATIENCE)

    def close(self) -> None:
        """Close the added sessions; a later `call` opens others."""
        self._is_closing = True
        if self._preparing:
            self._preparing.join()
        for other in self._others:
            other.close()
        self._others, self._failures, self._preparing, self._is_closing = [], [], None, False
