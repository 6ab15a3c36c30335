"""What the application keeps true by itself; each reconciler returns the rows it changed."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import psycopg

if TYPE_CHECKING:
    from collections.abc import Callable


def backfill_domains(connection: psycopg.Connection) -> int:
    """Give each organisation without a domain its default one.

    A hostname that somebody else holds is left to them.
    """
    return connection.execute(
        "INSERT INTO platform.domains (organisation_id, hostname, is_primary)"
        " SELECT id, platform.default_hostname(slug), true FROM platform.organisations"
        " WHERE NOT EXISTS (SELECT FROM platform.domains"
        " WHERE organisation_id = organisations.id)"
        " ON CONFLICT (hostname) DO NOTHING"
    ).rowcount


def sweep_placements(connection: psycopg.Connection) -> int:
    """Release the placements that nobody can use."""
    return connection.execute(
        "UPDATE platform.placements SET state = 'released', released_at = now() WHERE id IN (SELECT id FROM platform.orphaned_placements)"
    ).rowcount


def materialise_entitlements(connection: psycopg.Connection) -> int:
    """Make the entitlements from ladders what they are due to be; grants stay."""
    withdrawn = connection.execute(
        "DELETE FROM billing.entitlements WHERE source = 'ladder'"
        " AND NOT EXISTS (SELECT FROM billing.due_entitlements AS due"
        " WHERE due.organisation_id = entitlements.organisation_id"
        " AND due.feature = entitlements.feature)"
    ).rowcount
    given = connection.execute(
        "INSERT INTO billing.entitlements (organisation_id, feature, plan_id, allowance)"
        " SELECT organisation_id, feature, plan_id, allowance"
        " FROM billing.due_entitlements"
        " ON CONFLICT (organisation_id, feature) DO UPDATE"
        " SET plan_id = excluded.plan_id, allowance = excluded.allowance"
        " WHERE entitlements.source = 'ladder'"
        " AND (entitlements.plan_id, entitlements.allowance)"
        " IS DISTINCT FROM (excluded.plan_id, excluded.allowance)"
    ).rowcount
    return withdrawn + given


RECONCILERS: dict[str, Callable[[psycopg.Connection], int]] = {
    "domain backfill": backfill_domains,
    "orphaned-placement sweep": sweep_placements,
    "entitlement materialisation": materialise_entitlements,
}


def reconcile(connection: psycopg.Connection) -> None:
    """Run every reconciler once; each commits its work and its pulse together.

    What somebody else deletes or adds meanwhile is left to the next round.
    """
    for name, reconciler in RECONCILERS.items():
        with suppress(psycopg.IntegrityError), connection.transaction():
            changed = reconciler(connection)
            connection.execute(
                "INSERT INTO platform.reconciler_runs AS pulse"
                " (reconciler, runs, changed, last_run) VALUES (%s, 1, %s, now())"
                " ON CONFLICT (reconciler) DO UPDATE SET runs = pulse.runs + 1,"
                " changed = pulse.changed + excluded.changed, last_run = now()",
                (name, changed),
            )
