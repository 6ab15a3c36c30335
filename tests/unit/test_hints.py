"""What is said about a migration's error."""

from __future__ import annotations

import pytest

from harness import hints


@pytest.mark.parametrize(
    ("sqlstate", "statement", "said"),
    [
        ("25001", "CREATE INDEX CONCURRENTLY i ON t(id)", "-- harness: no-transaction"),
        ("25001", "CREATE DATABASE x", "inside one database"),
        ("2D000", "CALL p()", "-- harness: no-transaction"),
        ("55P04", "INSERT INTO t VALUES ('b')", "later file"),
        ("42710", "CREATE ROLE app_reader", "Roles belong to the cluster"),
        ("42710", "DO $$ BEGIN CREATE USER x; END $$", "Roles belong to the cluster"),
        ("42710", "CREATE TYPE x AS ENUM ()", "Mend the file"),
        ("2BP01", "DROP ROLE x", "another database still uses"),
        ("2BP01", "DROP TABLE x", "Mend the file"),
        ("42704", "ALTER TABLE t OWNER TO nobody", "--no-owner"),
        ("42704", "SELECT 'x'::nothing", "Mend the file"),
        ("42501", "CREATE EXTENSION IF NOT EXISTS file_fdw", "'file_fdw' takes a superuser"),
        ("42501", "CREATE EVENT TRIGGER x", 'as = "maintenance"'),
        ("0A000", "CREATE EXTENSION vector", "lacks the extension 'vector'"),
        ("58P01", 'CREATE EXTENSION "uuid-ossp"', "postgresql-contrib"),
        ("0A000", "SELECT 1", "Mend the file"),
        ("", "", "Mend the file"),
    ],
)
def test_known_errors_have_their_next_step(sqlstate: str, statement: str, said: str) -> None:
    """The state and the statement decide the advice, never the server's words."""
    assert said in hints.advice(sqlstate, statement, without_transaction=False)


def test_what_an_untransacted_file_did_is_kept() -> None:
    """Whoever mends such a file is told that its earlier statements stand."""
    assert "is kept" in hints.advice("22012", "SELECT 1/0", without_transaction=True)
    assert "Drop the invalid index" in hints.advice("23505", "CREATE UNIQUE INDEX CONCURRENTLY i ON t(id)", without_transaction=True)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pg_trgm", "postgresql-contrib (Debian: postgresql-15)"),
        ("vector", "(Debian: postgresql-15-pgvector)"),
        ("postgis", "(Debian: postgresql-15-postgis-3)"),
        ("some_thing", "(Debian: postgresql-15-some-thing or a like name)"),
    ],
)
def test_which_package_has_an_extension(name: str, said: str) -> None:
    """PostgreSQL's own, the common ones, and a guess that says it is one."""
    assert said in hints.missing_extension(name, 15)
