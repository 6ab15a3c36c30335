"""Organisations: their slugs, their types, their time of change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.mission_control.builders import add_organisation

if TYPE_CHECKING:
    from psycopg import Connection


def test_a_slug_belongs_to_one_organisation(test_connection: Connection) -> None:
    """A second organisation of the same slug is refused."""
    add_organisation(test_connection, "artemis")
    with pytest.raises(psycopg.errors.UniqueViolation):
        add_organisation(test_connection, "artemis")


@pytest.mark.parametrize("slug", ["", "Artemis", "9lives", "two words", "a" * 41], ids=["empty", "capital", "digit first", "space", "long"])
def test_a_slug_can_stand_in_a_hostname(test_connection: Connection, slug: str) -> None:
    """A slug that could not be a part of a hostname is refused."""
    with pytest.raises(psycopg.errors.CheckViolation):
        add_organisation(test_connection, slug)


def test_an_org_type_must_exist(test_connection: Connection) -> None:
    """An organisation of an unknown type is refused."""
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        add_organisation(test_connection, "artemis", "circus")


def test_a_change_moves_updated_at(test_connection: Connection) -> None:
    """Renaming an organisation moves its time of change and not its time of creation."""
    organisation = add_organisation(test_connection, "artemis")
    test_connection.execute("UPDATE platform.organisations SET name = 'Artemis II' WHERE id = %s", (organisation,))
    moved = test_connection.execute(
        "SELECT created_at = now(), updated_at > created_at FROM platform.organisations WHERE id = %s", (organisation,)
    ).fetchone()
    assert moved == (True, True)
