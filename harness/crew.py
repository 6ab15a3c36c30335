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
from harness.lock import worker_key
from harness.targets import Dsn

if TYPE_CHECKING:
    from harness.database import Connection

Job = Callable[["Connection"], object]

PATIENCE = 0.05
"""Seconds between two attempts to take a lock, or to cancel what an interrupted job is at."""


class Crew:
    """One session per database: the caller's own for the first, the others opened in the background by `call`.

    `dsn` is where the others connect; without one every job runs on the caller's own session, one after another.
    """

    def __init__(self, own: Connection, names: Sequence[str], dsn: Dsn | None) -> None:
        self._own, self._names = own, names
        self._dsn = dsn if len(names) > 1 else None
        self._others: list[Connection] = []
        self._failures: list[BaseException] = []
        self._background: list[threading.Thread] = []
        self._closing = False

    def call(self) -> None:
        """Begin to open the other sessions, unless that was done."""
        if self._dsn is not None and not self._background:
            self._background.append(self._started(partial(self._connect, self._dsn)))

    def begin(self, prelude: Job) -> None:
        """Let the other sessions lock their databases, which takes the run's own locks, and do `prelude` on the last one.

        It is done while the caller asks the server whether anything may be done at all.
        """
        self.call()
        if self._background:
            self._background.append(self._started(partial(self._prepare, self._background[-1], prelude)))

    def _connect(self, dsn: Dsn) -> None:
        for _ in self._names[1:]:
            self._others.append(database.connect(dsn, purpose="reset"))

    def _prepare(self, connecting: threading.Thread, prelude: Job) -> None:
        connecting.join()
        for session, name in zip(self._others, self._names[1:], strict=False):  # fewer where one could not be opened
            while session.execute(f"SELECT pg_try_advisory_lock({worker_key(name)})".encode()).fetchone() != (True,):
                if self._closing:
                    return
                time.sleep(PATIENCE)
        if not self._failures:
            prelude(self._others[-1])

    def _started(self, step: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=self._caught, args=[step])
        thread.start()
        return thread

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
        if self._dsn is None:
            for job in jobs:
                job(self._own)
            return
        for thread in self._background:
            thread.join()
        self._raise()
        threads: list[threading.Thread] = []
        try:
            for job, session in zip(jobs, [self._own, *self._others], strict=True):
                threads.append(self._started(partial(job, session)))
            for thread in threads:
                thread.join()
        except BaseException:
            self._stop(threads, self._dsn, on_interrupt)
            raise
        self._raise()

    def _raise(self) -> None:
        if self._failures:
            failure, self._failures = self._failures[0], []
            raise failure

    def _stop(self, threads: Sequence[threading.Thread], dsn: Dsn, on_interrupt: Callable[[Connection], object]) -> None:
        while any(thread.is_alive() for thread in threads):
            for session in (self._own, *self._others):
                with suppress(database.Error):
                    session.cancel_safe()
            with suppress(database.Error, HarnessError), database.connect(dsn, purpose="reset") as session:
                on_interrupt(session)
            for thread in threads:
                thread.join(PATIENCE)

    def close(self) -> None:
        """Close the added sessions; a later `call` opens others."""
        self._closing = True
        for thread in self._background:
            thread.join()
        while self._others:
            self._others.pop().close()
        self._background, self._failures, self._closing = [], [], False
