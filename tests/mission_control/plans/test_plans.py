"""Plans, what they include, and the ladders that lead from one to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

if TYPE_CHECKING:
    from psycopg import Connection

LADDER = "SELECT code FROM billing.default_plan_ladders JOIN billing.plans ON id = plan_id WHERE org_type = %s ORDER BY rung"


@pytest.mark.parametrize(
    ("org_type", "plans"),
    [("startup", ["suborbital", "orbital", "lunar"]), ("enterprise", ["orbital", "lunar"])],
    ids=["startup", "enterprise"],
)
def test_a_ladder_leads_upwards(test_connection: Connection, org_type: str, plans: list[str]) -> None:
    """The default ladder of an org type names its plans from the first to the last."""
    assert [code for (code,) in test_connection.execute(LADDER, (org_type,))] == plans


def test_a_dearer_plan_gives_no_less(test_connection: Connection) -> None:
    """Whoever pays more gets at least as much of every feature."""
    worse = test_connection.execute(
        "SELECT dear.code, cheap.code, less.feature"
        " FROM billing.plans AS cheap JOIN billing.plan_features AS less ON less.plan_id = cheap.id"
        " JOIN billing.plans AS dear ON dear.monthly_cents > cheap.monthly_cents"
        " LEFT JOIN billing.plan_features AS more ON more.plan_id = dear.id AND more.feature = less.feature"
        " WHERE more.allowance IS NULL OR more.allowance < less.allowance"
    ).fetchall()
    assert worse == []


def test_a_plan_stands_on_a_ladder_once(test_connection: Connection) -> None:
    """The same plan on a second rung of one ladder is refused."""
    with pytest.raises(psycopg.errors.UniqueViolation):
        test_connection.execute(
            "INSERT INTO billing.default_plan_ladders (org_type, rung, plan_id) SELECT 'startup', 4, id FROM billing.plans WHERE code = 'lunar'"
        )


def test_a_plan_on_a_ladder_cannot_be_deleted(test_connection: Connection) -> None:
    """A plan that a ladder leads to stays."""
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        test_connection.execute("DELETE FROM billing.plans WHERE code = 'orbital'")
