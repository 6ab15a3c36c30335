"""Placements: numbered seats, one active per person and organisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.mission_control.builders import add_organisation, add_placement

if TYPE_CHECKING:
    from psycopg import Connection


def test_references_count_upwards(test_connection: Connection) -> None:
    """Each placement's reference is the next number."""
    organisation = add_organisation(test_connection, "artemis")
    first, second = (add_placement(test_connection, organisation, holder) for holder in ("kay@artemis.example", "lee@artemis.example"))
    assert first.startswith("PL-")
    assert int(second[3:]) == int(first[3:]) + 1


def test_a_person_sits_once(test_connection: Connection) -> None:
    """A second active seat for the same person in one organisation is refused."""
    organisation = add_organisation(test_connection, "artemis")
    add_placement(test_connection, organisation, "kay@artemis.example")
    with pytest.raises(psycopg.errors.UniqueViolation):
        add_placement(test_connection, organisation, "kay@artemis.example", "orbit")


def test_a_released_placement_says_since_when(test_connection: Connection) -> None:
    """Releasing a placement without its time is refused."""
    add_placement(test_connection, add_organisation(test_connection, "artemis"), "kay@artemis.example")
    with pytest.raises(psycopg.errors.CheckViolation):
        test_connection.execute("UPDATE platform.placements SET state = 'released'")
