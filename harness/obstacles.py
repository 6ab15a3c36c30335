"""What stands in the way of replacing a database: what no forced drop clears, and what somebody may miss."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from harness.database import literal, quoted

if TYPE_CHECKING:
    from harness.database import Connection


class Blocker(NamedTuple):
    """Something that no forced drop clears, and the statement that does."""

    database: str
    finding: str
    statement: str


def prepared_transactions(connection: Connection, names: Iterable[str]) -> list[tuple[str, str, str]]:
    """Return (database, gid, owner) of the prepared transactions in the databases."""
    query = "SELECT database::text, gid, owner::text FROM pg_prepared_xacts WHERE database = ANY(%s)"
    return list(connection.execute(query, [list(names)]))


def blockers(connection: Connection, names: Iterable[str]) -> list[Blocker]:
    """Return the active replication slots and the subscriptions of the databases."""
    found = [
        Blocker(
            name,
            f"the active replication slot {slot!r} (pid {pid})",
            f"SELECT pg_terminate_backend({pid}), pg_drop_replication_slot({literal(slot)})",
        )
        for name, slot, pid in connection.execute(
            "SELECT database::text, slot_name::text, active_pid FROM pg_replication_slots WHERE active AND database = ANY(%s)",
            [list(names)],
        )
    ]
    for name, subscription in connection.execute(
        "SELECT d.datname::text, s.subname::text FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid WHERE d.datname = ANY(%s)",
        [list(names)],
    ):
        one = quoted(subscription)
        clear = f"ALTER SUBSCRIPTION {one} DISABLE; ALTER SUBSCRIPTION {one} SET (slot_name = NONE); DROP SUBSCRIPTION {one}"
        found.append(Blocker(name, f"the subscription {subscription!r}", clear))
    return found


def row_counts(connection: Connection) -> list[tuple[str, int | None]]:
    """Return the tables of the session's database with their exact numbers of rows, by name; None where this role may not count."""
    tables = connection.execute("""
        SELECT format('%I.%I', n.nspname, c.relname), has_table_privilege(c.oid, 'SELECT') AND has_schema_privilege(n.oid, 'USAGE')
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind = 'r' AND c.relpersistence <> 't' AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pgharness') ORDER BY 1""").fetchall()
    return [(name, _count(connection, name) if may_count else None) for name, may_count in tables]


def _count(connection: Connection, table: str) -> int:
    ((rows,),) = connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchall()  # noqa: S608  # quoted by the server
    return int(rows)
