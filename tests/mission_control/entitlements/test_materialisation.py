"""Entitlement materialisation: organisations have what their ladder's lowest rung includes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.mission_control.application.reconcilers import materialise_entitlements
from tests.mission_control.builders import add_organisation

if TYPE_CHECKING:
    from psycopg import Connection


def entitlements(connection: Connection, organisation: int) -> dict[str, tuple[int, str]]:
    """Return allowance and source of each feature an organisation may use."""
    rows = connection.execute("SELECT feature, allowance, source FROM billing.entitlements WHERE organisation_id = %s", (organisation,))
    return {feature: (allowance, source) for feature, allowance, source in rows}


def test_an_organisation_starts_on_the_lowest_rung(test_connection: Connection) -> None:
    """A new organisation gets the features of its ladder's first plan, once."""
    startup = add_organisation(test_connection, "artemis", "startup")
    assert materialise_entitlements(test_connection) == 2
    assert entitlements(test_connection, startup) == {"seats": (3, "ladder"), "launches": (1, "ladder")}
    assert materialise_entitlements(test_connection) == 0


def test_a_change_of_type_moves_the_entitlements(test_connection: Connection) -> None:
    """An enterprise that becomes a start-up has what start-ups start with and no more."""
    organisation = add_organisation(test_connection, "artemis", "enterprise")
    materialise_entitlements(test_connection)
    expected = {"seats": (25, "ladder"), "launches": (10, "ladder"), "telemetry_days": (30, "ladder")}
    assert entitlements(test_connection, organisation) == expected
    test_connection.execute("UPDATE platform.organisations SET org_type = 'startup' WHERE id = %s", (organisation,))
    assert materialise_entitlements(test_connection) == 3
    assert entitlements(test_connection, organisation) == {"seats": (3, "ladder"), "launches": (1, "ladder")}


def test_what_is_due_no_more_is_withdrawn(test_connection: Connection) -> None:
    """Unsetting a ladder withdraws what it gave."""
    organisation = add_organisation(test_connection, "artemis", "startup")
    materialise_entitlements(test_connection)
    test_connection.execute("DELETE FROM billing.default_plan_ladders WHERE org_type = 'startup'")
    assert materialise_entitlements(test_connection) == 2
    assert entitlements(test_connection, organisation) == {}


def test_a_grant_stays_as_it_is(test_connection: Connection) -> None:
    """What was granted by hand is neither lowered to the ladder's allowance nor withdrawn."""
    organisation = add_organisation(test_connection, "artemis", "startup")
    test_connection.execute(
        "INSERT INTO billing.entitlements (organisation_id, feature, plan_id, allowance, source)"
        " SELECT %s, feature, plan_id, 7, 'grant' FROM billing.plan_features JOIN billing.plans ON id = plan_id"
        " WHERE code = 'orbital' AND feature IN ('seats', 'telemetry_days')",
        (organisation,),
    )
    materialise_entitlements(test_connection)
    expected = {"seats": (7, "grant"), "telemetry_days": (7, "grant"), "launches": (1, "ladder")}
    assert entitlements(test_connection, organisation) == expected
