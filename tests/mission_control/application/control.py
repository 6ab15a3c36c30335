"""The application's life: migrate, seed, reconcile again and again, stop."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

import psycopg

from harness import migrate

from .demo import seed
from .reconcilers import reconcile

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class MissionControl:
    """Run on one database for as long as the `with` block lasts.

    Entering returns when the schema is up to date, the demo data is there and the first
    round is under way. Leaving waits for the round at work, and raises what broke it.
    """

    def __init__(self, dsn: str, *, interval: float = 1) -> None:
        self.migrated: list[str] = []
        self._dsn = dsn
        self._interval = interval
        # A SimpleQueue, for a signal handler may put into it at any moment.
        self._stopping: SimpleQueue[None] = SimpleQueue()
        self._rounds: Future[None] = Future()
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        """Boot; nothing is left open when a step fails."""
        with ExitStack() as resources:
            self.migrated = migrate(self._dsn)
            connection = psycopg.connect(self._dsn, autocommit=True, application_name="mission-control")
            resources.callback(connection.close)
            seed(connection)
            worker = resources.enter_context(ThreadPoolExecutor(1, "mission-control"))
            self._rounds = worker.submit(self._run, connection)
            self._resources = resources.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop, close, and let no failure of a reconciler pass unseen."""
        self.stop()
        self._resources.close()
        if error is None:
            self.wait()

    def stop(self) -> None:
        """Ask for the end of the rounds; safe in a signal handler."""
        self._stopping.put(None)

    def wait(self) -> None:
        """Return when the rounds have ended; raise what ended them early."""
        self._rounds.result()

    def _run(self, connection: psycopg.Connection) -> None:
        while True:
            reconcile(connection)
            try:
                self._stopping.get(timeout=self._interval)
            except Empty:
                continue
            return
