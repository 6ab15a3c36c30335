"""The ledger in the target database: which file of which stream was applied, and with which content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from harness.database import failing_as, literal, quoted
from harness.errors import Refusal
from harness.sql import File

if TYPE_CHECKING:
    from harness.database import Connection

SCHEMA = "pgharness"
_TABLE = f"{SCHEMA}.applied"


class Ledger(NamedTuple):
    """What was applied: content hash by (stream, file). `lived` says that the database had relations before its first row."""

    rows: Mapping[tuple[str, str], str]
    exists: bool
    lived: bool


def read(connection: Connection) -> Ledger:
    """Read the ledger of the connection's database."""
    with failing_as("the ledger of applied migrations cannot be read", next=f"Let the database's own role read {_TABLE}."):
        found = connection.execute(
            """SELECT to_regclass('pgharness.applied') IS NOT NULL, EXISTS (SELECT FROM pg_catalog.pg_class c
               WHERE c.relnamespace <> ALL (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname ~ '^pg_|^information_schema$|^pgharness$'))"""
        ).fetchone()
        exists, lived = found or (False, False)
        rows = connection.execute("SELECT stream, file, sha256 FROM pgharness.applied").fetchall() if exists else []
        return Ledger({(row[0], row[1]): row[2] for row in rows}, exists, lived)


def create(connection: Connection, other_role: str | None) -> None:
    """Make the ledger; `other_role` may then read and write it too."""
    with failing_as("the ledger of applied migrations cannot be made", next="Migrate as the role that owns the database."):
        connection.execute(
            f"""CREATE SCHEMA IF NOT EXISTS {SCHEMA}; CREATE TABLE IF NOT EXISTS {_TABLE} (stream text NOT NULL, position integer NOT NULL,
            file text NOT NULL, sha256 text NOT NULL, applied_at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (stream, file))"""
        )
        if other_role is not None:
            role = quoted(other_role)
            connection.execute(f"GRANT USAGE ON SCHEMA {SCHEMA} TO {role}; GRANT SELECT, INSERT, UPDATE ON {_TABLE} TO {role}")


def row(stream: str, position: int, file: str, sha256: str) -> str:
    """Return the statement that enters a file, or what a command stream was made of."""
    values = f"{literal(stream)}, {position}, {literal(file)}, {literal(sha256)}"
    return (
        f"INSERT INTO {_TABLE} (stream, position, file, sha256) VALUES ({values})"  # noqa: S608  # literals
        " ON CONFLICT (stream, file) DO UPDATE SET sha256 = excluded.sha256, applied_at = excluded.applied_at"
    )


def pending(stream: str, files: Sequence[File], ledger: Ledger) -> list[File]:
    """Return the files of a stream that the ledger lacks.

    Raises Refusal when an applied file was edited, is missing, or a pending file is ordered before an applied one: the
    database then holds what these files would not make.
    """
    known = {file.name: file for file in files}
    for of_stream, name in ledger.rows:
        if of_stream == stream and name not in known:
            finding = f"stream {stream!r}: {name} was applied to this database, but the file is gone"
            raise Refusal(finding, next="Bring it back: is it another branch's? A reset starts from zero.")
    todo: list[File] = []
    for file in files:
        applied = ledger.rows.get((stream, file.name))
        if applied is None:
            todo.append(file)
        elif applied != file.sha256:
            finding = f"stream {stream!r}: {file.path} was edited after it was applied to this database"
            raise Refusal(finding, next="Undo the edit and write a new file for the change. A reset starts from zero.")
        elif todo:
            finding = f"stream {stream!r}: {todo[0].path} is new, but {file.name} behind it was applied to this database already"
            raise Refusal(finding, next=f"Give it a number after {file.name}. A reset starts from zero.")
    return todo
