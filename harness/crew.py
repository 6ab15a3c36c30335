"""Sessions that work on several databases at once, and the orderly end of that work when a signal comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from harness import database
from harness.errors import HarnessError
from harness.lock import lock_key
from harness.targets import Dsn

if TYPE_CHECKING:
    from harness.database import Connection

Job = Callable[["Connection"], object]

PATIENCE = 0.05
"""Seconds between two attempts to cancel what an interrupted job is at."""


def worker_key(name: str) -> int:
    """Return the key of the lock that an added session holds while it works on the database `name`.

    A killed reset's session finishes its statement in the server after the locks of the run are gone: the next reset sees
    this one and waits for it.
    """
    return lock_key(f"\0worker {name}")


class Crew:
    """One session per database: the caller's own for the first, the others opened in the background from the start.

    `dsn` is where the others connect; without one every job runs on the caller's own session, one after another.
    """

    def __init__(self, own: Connection, names: Sequence[str], dsn: Dsn | None) -> None:
        self._own, self._names, self._dsn = own, names, dsn
        self._others: list[Connection] = []
        self._failures: list[BaseException] = []
        self._opener: threading.Thread | None = None
        self._closing = False
        if dsn is not None and len(names) > 1:
            self._opener = threading.Thread(target=self._caught, args=[partial(self._open, dsn)])
            self._opener.start()

    @property
    def worker_keys(self) -> list[int]:
        """The locks that added sessions hold, another reset's of the same databases too."""
        return [worker_key(name) for name in self._names]

    @property
    def pids(self) -> list[int]:
        """The server's processes behind the added sessions, as far as they are open."""
        return [session.info.backend_pid for session in self._others]

    def _open(self, dsn: Dsn) -> None:
        for name in self._names[1:]:
            session = database.connect(dsn, purpose="reset")
            self._others.append(session)
            while session.execute(f"SELECT pg_try_advisory_lock({worker_key(name)})".encode()).fetchone() != (True,) and not self._closing:
                time.sleep(PATIENCE)

    def _caught(self, step: Callable[[], object]) -> None:
        try:
            step()
        except BaseException as error:  # noqa: BLE001  # raised again in the main thread
            self._failures.append(error)

    def run(self, jobs: Sequence[Job], *, on_interrupt: Callable[[Connection], object]) -> None:
        """Run one job per database at once, each to its end, then raise the first failure.

        A signal cancels what is at work in the server, and calls `on_interrupt` with a session of its own, until every
        job has ended.
        """
        if self._opener is None:
            for job in jobs:
                job(self._own)
            return
        self._opener.join()
        self._raise()
        pairs = zip(jobs, [self._own, *self._others], strict=True)
        threads = [threading.Thread(target=self._caught, args=[partial(job, session)]) for job, session in pairs]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException:
            self._stop([thread for thread in threads if thread.ident], on_interrupt)
            raise
        self._raise()

    def _raise(self) -> None:
        if self._failures:
            failure, self._failures = self._failures[0], []
            raise failure

    def _stop(self, threads: Sequence[threading.Thread], on_interrupt: Callable[[Connection], object]) -> None:
        while any(thread.is_alive() for thread in threads):
            for session in (self._own, *self._others):
                with suppress(database.Error):
                    session.cancel_safe()
            if self._dsn is not None:
                with suppress(database.Error, HarnessError), database.connect(self._dsn, purpose="reset") as session:
                    on_interrupt(session)
            for thread in threads:
                thread.join(PATIENCE)

    def close(self) -> None:
        """Close the added sessions."""
        self._closing = True
        if self._opener is not None:
            self._opener.join()
        for connection in self._others:
            connection.close()
