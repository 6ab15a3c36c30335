"""Signing in: which role a person's groups give."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from psycopg import Connection


@pytest.mark.parametrize(
    ("groups", "role"),
    [
        (["controllers"], "member"),
        (["visitors", "flight-directors", "controllers"], "owner"),
        (["caterers", "visitors"], "viewer"),
        (["caterers"], None),
        ([], None),
    ],
    ids=["one group", "strongest of several", "unknown beside known", "unknown", "none"],
)
def test_the_strongest_group_decides(test_connection: Connection, groups: list[str], role: str | None) -> None:
    """A person gets the strongest role that any of their groups gives, and none without a mapped group."""
    assert test_connection.execute("SELECT platform.role_for_groups('ground', %s)", (groups,)).fetchone() == (role,)


def test_a_retired_provider_lets_nobody_in(test_connection: Connection) -> None:
    """Mapped groups give no role once their provider is retired."""
    test_connection.execute("UPDATE platform.providers SET retired_at = now() WHERE code = 'ground'")
    assert test_connection.execute("SELECT platform.role_for_groups('ground', '{controllers}')").fetchone() == (None,)
