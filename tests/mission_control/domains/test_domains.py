"""Domains: whose a hostname is, and which one comes first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.mission_control.builders import add_organisation

if TYPE_CHECKING:
    from psycopg import Connection

ADD = "INSERT INTO platform.domains (organisation_id, hostname, is_primary) VALUES (%s, %s, %s)"


def test_a_hostname_belongs_to_one_organisation(test_connection: Connection) -> None:
    """A hostname that is taken is refused to a second organisation."""
    test_connection.execute(ADD, (add_organisation(test_connection, "artemis"), "launch.example", True))
    with pytest.raises(psycopg.errors.UniqueViolation):
        test_connection.execute(ADD, (add_organisation(test_connection, "ariane"), "launch.example", True))


def test_an_organisation_has_one_primary_domain(test_connection: Connection) -> None:
    """Further domains are welcome, a second primary one is refused."""
    organisation = add_organisation(test_connection, "artemis")
    test_connection.execute(ADD, (organisation, "one.example", True))
    test_connection.execute(ADD, (organisation, "two.example", False))
    with pytest.raises(psycopg.errors.UniqueViolation):
        test_connection.execute(ADD, (organisation, "three.example", True))


@pytest.mark.parametrize("hostname", ["Launch.example", "localhost", ".example"], ids=["capital", "no dot", "nothing before the dot"])
def test_a_hostname_is_lower_case_and_dotted(test_connection: Connection, hostname: str) -> None:
    """What cannot be a public hostname is refused."""
    with pytest.raises(psycopg.errors.CheckViolation):
        test_connection.execute(ADD, (add_organisation(test_connection, "artemis"), hostname, True))
