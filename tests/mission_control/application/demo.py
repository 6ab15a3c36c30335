"""The data a new installation shows: three organisations and who sits in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psycopg

ORGANISATIONS = [
    ("apollo", "Apollo Programme", "enterprise"),
    ("gemini", "Gemini Labs", "startup"),
    ("mercury", "Mercury School of Flight", "academy"),
]

# The last one's organisation is gone: the sweep finds work at the first round.
PLACEMENTS = [
    ("DEMO-1", "apollo", "ground", "gene@apollo.example"),
    ("DEMO-2", "gemini", "orbit", "ada@gemini.example"),
    ("DEMO-3", None, "ground", "laika@sputnik.example"),
]


def seed(connection: psycopg.Connection) -> None:
    """Add what is missing of the demo data; what is there stays as it is."""
    with connection.transaction(), connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO platform.organisations (slug, name, org_type) VALUES (%s, %s, %s) ON CONFLICT (slug) DO NOTHING",
            ORGANISATIONS,
        )
        cursor.executemany(
            "INSERT INTO platform.placements"
            " (reference, organisation_id, provider_id, holder)"
            " VALUES (%s, (SELECT id FROM platform.organisations WHERE slug = %s),"
            " (SELECT id FROM platform.providers WHERE code = %s), %s)"
            " ON CONFLICT (reference) DO NOTHING",
            PLACEMENTS,
        )
