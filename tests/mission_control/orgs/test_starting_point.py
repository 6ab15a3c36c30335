"""What a package finds when the run begins: the migrations' work and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness import migrate

if TYPE_CHECKING:
    import psycopg


def test_migrating_again_does_nothing(test_database_url: str) -> None:
    """After a reset a package's own `harness.migrate` finds every file applied."""
    assert migrate(test_database_url) == []


def test_there_is_no_organisation(test_connection: psycopg.Connection) -> None:
    """Migrations create no organisation, so whatever a test finds it made itself."""
    assert test_connection.execute("SELECT slug FROM platform.organisations").fetchall() == []


def test_nothing_has_reconciled(test_connection: psycopg.Connection) -> None:
    """No application has ever run on this database."""
    assert test_connection.execute("SELECT reconciler FROM platform.reconciler_runs").fetchall() == []
