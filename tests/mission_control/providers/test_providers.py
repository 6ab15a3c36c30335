"""Providers and the mapping of their groups to roles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

if TYPE_CHECKING:
    from psycopg import Connection

MAP = (
    "INSERT INTO platform.provider_group_mappings (provider_id, external_group, role)"
    " SELECT id, %s, %s FROM platform.providers WHERE code = 'ground'"
)


def test_the_migrations_bring_two_providers(test_connection: Connection) -> None:
    """Both providers are there and in use."""
    found = test_connection.execute("SELECT code, retired_at FROM platform.providers ORDER BY code").fetchall()
    assert found == [("ground", None), ("orbit", None)]


def test_a_group_has_one_role(test_connection: Connection) -> None:
    """A second mapping of the same group is refused."""
    with pytest.raises(psycopg.errors.UniqueViolation):
        test_connection.execute(MAP, ("controllers", "viewer"))


def test_a_role_must_be_known(test_connection: Connection) -> None:
    """A mapping to a role that nobody knows is refused."""
    with pytest.raises(psycopg.errors.CheckViolation):
        test_connection.execute(MAP, ("astronauts", "emperor"))


def test_mappings_go_with_their_provider(test_connection: Connection) -> None:
    """Deleting a provider leaves no mapping behind."""
    test_connection.execute("DELETE FROM platform.providers WHERE code = 'ground'")
    assert test_connection.execute("SELECT external_group FROM platform.provider_group_mappings").fetchall() == []
