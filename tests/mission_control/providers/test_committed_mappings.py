"""Group mappings that are committed for a while, as code under test with connections of its own needs them."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection

HOLD = float(os.environ.get("MISSION_CONTROL_HOLD", "0.1"))
"""Seconds for which other sessions can see the rows."""


@pytest.fixture
def mapped_orbit(test_database_url: str) -> Iterator[None]:
    """Map a group of the provider 'orbit', for everybody to see, and take the mapping back."""
    with psycopg.connect(test_database_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO platform.provider_group_mappings (provider_id, external_group, role)"
            " SELECT id, 'crew', 'member' FROM platform.providers WHERE code = 'orbit'"
        )
        try:
            yield
        finally:
            connection.execute(
                "DELETE FROM platform.provider_group_mappings USING platform.providers"
                " WHERE id = provider_id AND code = 'orbit' AND external_group = 'crew'"
            )


@pytest.mark.usefixtures("mapped_orbit")
def test_every_session_sees_a_committed_mapping(test_connection: Connection) -> None:
    """A group mapped by one session gives its role in another, from the first moment to the last."""
    end = time.monotonic() + HOLD
    while time.monotonic() < end:
        assert test_connection.execute("SELECT platform.role_for_groups('orbit', '{crew}')").fetchone() == ("member",)
        time.sleep(0.01)
