"""A provider without mappings: the state that migrations leave and that no other suite may change."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from psycopg import Connection


def test_orbit_has_no_group_mappings(test_connection: Connection) -> None:
    """The provider 'orbit' is unmapped."""
    found = test_connection.execute(
        "SELECT external_group, role FROM platform.provider_group_mappings JOIN platform.providers ON id = provider_id WHERE code = 'orbit'"
    ).fetchall()
    assert found == []


def test_orbit_lets_nobody_in(test_connection: Connection) -> None:
    """No group gives a role at an unmapped provider, not even one that another provider maps."""
    assert test_connection.execute("SELECT platform.role_for_groups('orbit', '{crew,controllers}')").fetchone() == (None,)
