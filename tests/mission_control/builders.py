"""Rows that several packages start from."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psycopg


def add_organisation(connection: psycopg.Connection, slug: str, org_type: str = "startup") -> int:
    """Insert an organisation and return its id."""
    row = connection.execute(
        "INSERT INTO platform.organisations (slug, name, org_type) VALUES (%s, %s, %s) RETURNING id", (slug, f"Programme {slug}", org_type)
    ).fetchone()
    assert row is not None
    return int(row[0])


def add_placement(connection: psycopg.Connection, organisation: int, holder: str, provider: str = "ground") -> str:
    """Insert an active placement and return its reference."""
    row = connection.execute(
        "INSERT INTO platform.placements (organisation_id, provider_id, holder)"
        " SELECT %s, id, %s FROM platform.providers WHERE code = %s RETURNING reference",
        (organisation, holder, provider),
    ).fetchone()
    assert row is not None
    return str(row[0])
