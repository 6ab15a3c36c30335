"""An org type without a default ladder: the state that migrations leave and that no other suite may change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.mission_control.application.reconcilers import materialise_entitlements
from tests.mission_control.builders import add_organisation

if TYPE_CHECKING:
    from psycopg import Connection


def test_academies_have_no_default_ladder(test_connection: Connection) -> None:
    """The default ladder of the org type 'academy' is unset."""
    assert test_connection.execute("SELECT rung, plan_id FROM billing.default_plan_ladders WHERE org_type = 'academy'").fetchall() == []


def test_an_academy_is_entitled_to_nothing(test_connection: Connection) -> None:
    """Without a ladder there is nothing to materialise."""
    add_organisation(test_connection, "artemis", "academy")
    assert materialise_entitlements(test_connection) == 0
