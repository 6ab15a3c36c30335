"""Onboarding, end to end: everything here is committed, for the application and for good."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.mission_control.application import MissionControl
from tests.mission_control.builders import add_organisation, add_placement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection

PATIENCE = 30
SESSIONS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'mission-control' AND datname = current_database()"


@pytest.fixture
def application(e2e_database_url: str) -> Iterator[MissionControl]:
    """Run the application in this process."""
    with MissionControl(e2e_database_url, interval=0.01) as running:
        yield running


def eventually(connection: Connection, query: str, *parameters: object) -> list[tuple[object, ...]]:
    """Return the rows of a query as soon as there are any, or none after all patience."""
    end = time.monotonic() + PATIENCE
    while not (rows := connection.execute(query, parameters).fetchall()) and time.monotonic() < end:
        time.sleep(0.01)
    return rows


def test_booting_finds_nothing_to_migrate(application: MissionControl) -> None:
    """After a reset the application's own migration is a no-op."""
    assert application.migrated == []


@pytest.mark.usefixtures("application")
def test_every_reconciler_commits_again_and_again(e2e_connection: Connection) -> None:
    """The pulse of all three goes on for as long as the application runs."""
    beating = "SELECT count(*) FROM platform.reconciler_runs HAVING count(*) = 3 AND min(runs) >= %s + 3"
    (runs,) = eventually(e2e_connection, "SELECT max(runs) FROM platform.reconciler_runs HAVING count(*) = 3")
    assert eventually(e2e_connection, beating, *runs) == [(3,)]


@pytest.mark.usefixtures("application")
def test_a_new_organisation_gets_its_domain(e2e_connection: Connection) -> None:
    """An organisation that signs up without a domain soon has one."""
    voyager = add_organisation(e2e_connection, "voyager", "startup")
    domain = eventually(e2e_connection, "SELECT hostname, is_primary FROM platform.domains WHERE organisation_id = %s", voyager)
    assert domain == [("voyager.missions.example", True)]


@pytest.mark.usefixtures("application")
def test_a_ladder_reaches_the_organisations_of_its_type(e2e_connection: Connection) -> None:
    """Setting the default ladder of academies entitles an academy to what its lowest rung includes."""
    pioneer = add_organisation(e2e_connection, "pioneer", "academy")
    e2e_connection.execute(
        "INSERT INTO billing.default_plan_ladders (org_type, rung, plan_id) SELECT 'academy', 1, id FROM billing.plans WHERE code = 'suborbital'"
    )
    given = "SELECT feature, allowance FROM billing.entitlements WHERE organisation_id = %s ORDER BY feature"
    assert eventually(e2e_connection, given, pioneer) == [("launches", 1), ("seats", 3)]


@pytest.mark.usefixtures("application")
def test_the_seats_of_a_closed_organisation_are_released(e2e_connection: Connection) -> None:
    """Somebody who signs in through a newly mapped group takes a seat, and loses it when the organisation closes."""
    e2e_connection.execute(
        "INSERT INTO platform.provider_group_mappings (provider_id, external_group, role)"
        " SELECT id, 'crew', 'member' FROM platform.providers WHERE code = 'orbit'"
    )
    assert e2e_connection.execute("SELECT platform.role_for_groups('orbit', '{crew}')").fetchone() == ("member",)
    skylab = add_organisation(e2e_connection, "skylab", "enterprise")
    seat = add_placement(e2e_connection, skylab, "pete@skylab.example", "orbit")
    e2e_connection.execute("DELETE FROM platform.organisations WHERE id = %s", (skylab,))
    assert eventually(e2e_connection, "SELECT 1 FROM platform.placements WHERE reference = %s AND state = 'released'", seat)


def test_the_demo_data_is_seeded_once(e2e_database_url: str, e2e_connection: Connection) -> None:
    """Booting again adds nothing to the demo data and changes nothing of it."""
    demo = "SELECT id, slug, updated_at FROM platform.organisations WHERE slug IN ('apollo', 'gemini', 'mercury') ORDER BY id"
    snapshots = []
    for _ in range(2):
        with MissionControl(e2e_database_url):
            snapshots.append(e2e_connection.execute(demo).fetchall())
    assert len(snapshots[0]) == 3
    assert snapshots[0] == snapshots[1]


def test_leaving_closes_the_session(e2e_database_url: str, e2e_connection: Connection) -> None:
    """Nothing of the application stays connected after its block."""
    with MissionControl(e2e_database_url):
        assert e2e_connection.execute(SESSIONS).fetchall() != []
    gone = "SELECT 1 WHERE NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'mission-control' AND datname = current_database())"
    assert eventually(e2e_connection, gone)


def test_a_lost_session_is_told(e2e_database_url: str, e2e_connection: Connection) -> None:
    """An application whose session was ended raises, to whoever waits for it and again when it is left."""
    with pytest.raises(psycopg.OperationalError), MissionControl(e2e_database_url, interval=0.01) as application:  # noqa: PT012 - the end of the block raises
        e2e_connection.execute(f"SELECT pg_terminate_backend(pid) FROM ({SESSIONS}) AS sessions")
        with pytest.raises(psycopg.OperationalError):
            application.wait()
