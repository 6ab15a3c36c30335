"""A default ladder that is committed for a while, as code under test with connections of its own needs it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.mission_control.builders import add_organisation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection

HOLD = float(os.environ.get("MISSION_CONTROL_HOLD", "0.1"))
"""Seconds for which other sessions can see the row."""


@pytest.fixture
def academy_ladder(test_database_url: str) -> Iterator[None]:
    """Set the default ladder of the org type 'academy', for everybody to see, and unset it again."""
    with psycopg.connect(test_database_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO billing.default_plan_ladders (org_type, rung, plan_id) SELECT 'academy', 1, id FROM billing.plans WHERE code = 'lunar'"
        )
        try:
            yield
        finally:
            connection.execute("DELETE FROM billing.default_plan_ladders WHERE org_type = 'academy'")


@pytest.mark.usefixtures("academy_ladder")
def test_every_session_sees_a_committed_ladder(test_connection: Connection) -> None:
    """A ladder set by one session makes entitlements due in another, from the first moment to the last."""
    academy = add_organisation(test_connection, "soyuz", "academy")
    end = time.monotonic() + HOLD
    while time.monotonic() < end:
        due = test_connection.execute(
            "SELECT feature FROM billing.due_entitlements WHERE organisation_id = %s ORDER BY feature", (academy,)
        )
        assert due.fetchall() == [("launches",), ("seats",), ("telemetry_days",)]
        time.sleep(0.01)
