"""The domain backfill: nobody stays without a domain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.mission_control.application.reconcilers import backfill_domains
from tests.mission_control.builders import add_organisation

if TYPE_CHECKING:
    from psycopg import Connection

ADD = "INSERT INTO platform.domains (organisation_id, hostname) VALUES (%s, %s)"
ALL = "SELECT slug, hostname, is_primary FROM platform.domains JOIN platform.organisations o ON o.id = organisation_id ORDER BY slug"


def test_an_organisation_without_domains_gets_one_from_its_slug(test_connection: Connection) -> None:
    """The backfilled domain is the organisation's primary one, and the next pass finds nothing to do."""
    add_organisation(test_connection, "artemis")
    assert backfill_domains(test_connection) == 1
    assert test_connection.execute(ALL).fetchall() == [("artemis", "artemis.missions.example", True)]
    assert backfill_domains(test_connection) == 0


def test_a_domain_of_its_own_is_enough(test_connection: Connection) -> None:
    """An organisation that has any domain is left alone."""
    test_connection.execute(ADD, (add_organisation(test_connection, "artemis"), "launch.example"))
    assert backfill_domains(test_connection) == 0
    assert test_connection.execute(ALL).fetchall() == [("artemis", "launch.example", False)]


def test_a_taken_hostname_stays_with_its_holder(test_connection: Connection) -> None:
    """When another organisation holds the default hostname, nothing is taken from it and nothing fails."""
    test_connection.execute(ADD, (add_organisation(test_connection, "ariane"), "artemis.missions.example"))
    add_organisation(test_connection, "artemis")
    assert backfill_domains(test_connection) == 0
    assert test_connection.execute(ALL).fetchall() == [("ariane", "artemis.missions.example", False)]
