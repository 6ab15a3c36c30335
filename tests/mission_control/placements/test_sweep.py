"""The orphaned-placement sweep: seats that nobody can use are released."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.mission_control.application.reconcilers import sweep_placements
from tests.mission_control.builders import add_organisation, add_placement

if TYPE_CHECKING:
    from psycopg import Connection


def released(connection: Connection) -> list[str]:
    """Return the references of the released placements."""
    return [reference for (reference,) in connection.execute("SELECT reference FROM platform.placements WHERE state = 'released'")]


def test_a_placement_without_organisation_is_released(test_connection: Connection) -> None:
    """Deleting an organisation releases its placements at the next sweep, and nobody else's."""
    gone, staying = (add_organisation(test_connection, slug) for slug in ("artemis", "ariane"))
    orphan = add_placement(test_connection, gone, "kay@artemis.example")
    add_placement(test_connection, staying, "lee@ariane.example")
    test_connection.execute("DELETE FROM platform.organisations WHERE id = %s", (gone,))
    assert sweep_placements(test_connection) == 1
    assert released(test_connection) == [orphan]
    assert sweep_placements(test_connection) == 0


def test_a_placement_of_a_retired_provider_is_released(test_connection: Connection) -> None:
    """Retiring a provider releases the seats of those who sign in through it."""
    organisation = add_organisation(test_connection, "artemis")
    orphan = add_placement(test_connection, organisation, "kay@artemis.example", "orbit")
    add_placement(test_connection, organisation, "lee@artemis.example", "ground")
    test_connection.execute("UPDATE platform.providers SET retired_at = now() WHERE code = 'orbit'")
    assert sweep_placements(test_connection) == 1
    assert released(test_connection) == [orphan]
