"""Sessions at work side by side: a signal waits for the work to end, and a session that cannot be opened holds nobody up."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from harness import database
from harness.crew import Crew, Opening
from harness.targets import parse_dsn
from tests.builders import ScratchCluster

if TYPE_CHECKING:
    from harness.database import Connection


def test_after_a_signal_nothing_is_at_work_any_more(scratch_cluster: ScratchCluster) -> None:
    """The work that was being waited for when the signal came included, between whose statements a cancel may have no effect."""
    dsn = parse_dsn("MAINTENANCE_DATABASE_URL", scratch_cluster.dsn())
    crew, ended, cancelled = Crew(["a", "b"], dsn), threading.Event(), list[str]()

    def long(connection: Connection) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)
        for _ in range(3):
            try:
                connection.execute("SELECT pg_sleep(60)")
            except database.Error as error:
                cancelled.append(error.sqlstate or "")
        ended.set()

    with database.connect(dsn, purpose="reset") as own:
        crew.begin(lambda _: None)
        # Who starts the tests in a shell's background has SIGINT ignored.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                crew.run(own, [long, lambda _: None], on_interrupt=lambda _: None)
            assert ended.is_set()
        finally:
            signal.signal(signal.SIGINT, before)
            crew.close()
    assert cancelled == ["57014"] * 3


def test_a_session_that_cannot_be_opened_holds_no_end_up() -> None:
    """Neither where it is waited for in the background, nor where it alone is closed."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dsn = parse_dsn("MAINTENANCE_DATABASE_URL", f"postgresql://su@127.0.0.1:{silent.getsockname()[1]}/postgres")
        started = time.monotonic()
        crew = Crew(["a", "b"], dsn)
        crew.begin(lambda _: None)
        crew.close()
        Opening(dsn, "reset").close()
        assert time.monotonic() - started < database.CONNECT_TIMEOUT / 2
