"""What stands in the way of replacing a database: sessions, what no forced drop clears, and what somebody may miss."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from harness.database import DatabaseRow, failing_as, literal, quoted
from harness.errors import ResetFailed
from harness.results import EndedSession

if TYPE_CHECKING:
    from harness.database import Connection

OnEnded = Callable[[int, EndedSession], object]
"""Told the oid of the database and the session of somebody that was ended on it."""
QUIET_TIMEOUT = 15.0
"""Seconds until sessions that were asked to end must be gone."""
PAUSE = 0.001
IN_USE = "55006"
"""The SQLSTATE of a drop, rename or clone that waited five seconds for somebody's session."""


class Obstacle(NamedTuple):
    """One thing that keeps a database from being closed, renamed or dropped.

    `kind` is session (one that we may not end), prepared, slot (an active one) or subscription; `subject` its pid, gid or
    name, and `user` whose it is.
    """

    kind: str
    database: str
    subject: str
    user: str
    pid: int
    superuser: bool
    application: str = ""


# An ordinary role reads NULL for the type of another role's session; workers of the server itself have no role.
_CLIENTS = """
    a.usesysid IS NOT NULL AND coalesce(a.backend_type, 'client backend') IN ('client backend', 'walsender')
    AND a.pid NOT IN (SELECT active_pid FROM pg_replication_slots WHERE active)"""
_MAY_END = """(pg_has_role('pg_signal_backend', 'USAGE') AND NOT coalesce(r.rolsuper, false) OR pg_has_role(a.usesysid, 'USAGE')
    AND (NOT coalesce(r.rolsuper, false) OR (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)))"""
_QUESTION = f"""
    SELECT 'prepared', database::text, gid, owner::text, 0, false, '' FROM pg_prepared_xacts WHERE database = ANY(%(names)s)
    UNION ALL
    SELECT 'slot', database::text, slot_name::text, '', active_pid, false, '' FROM pg_replication_slots
    WHERE active AND database = ANY(%(names)s)
    UNION ALL
    SELECT 'subscription', d.datname::text, s.subname::text, '', 0, false, ''
    FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid WHERE d.datname = ANY(%(names)s)
    UNION ALL
    SELECT 'session', a.datname::text, a.pid::text, a.usename::text, a.pid, coalesce(r.rolsuper, false), a.application_name
    FROM pg_stat_activity a LEFT JOIN pg_roles r ON r.oid = a.usesysid
    WHERE a.datname = ANY(%(names)s) AND {_CLIENTS} AND NOT {_MAY_END}"""  # noqa: S608  # constant parts
_END = f"""
    SELECT a.datid, a.pid, a.usename::text, a.application_name, a.state, CASE WHEN {_MAY_END} THEN pg_terminate_backend(a.pid) END
    FROM pg_stat_activity a LEFT JOIN pg_roles r ON r.oid = a.usesysid WHERE a.datid = ANY(%(oids)s) AND {_CLIENTS}"""  # noqa: S608  # constant parts


_ANYTHING = """
    SELECT EXISTS (SELECT FROM pg_stat_get_activity(NULL) WHERE datid = ANY(%(oids)s))
    OR EXISTS (SELECT FROM pg_prepared_xact() WHERE dbid = ANY(%(oids)s))
    OR EXISTS (SELECT FROM pg_get_replication_slots() WHERE active AND datoid = ANY(%(oids)s))
    OR EXISTS (SELECT FROM pg_subscription WHERE subdbid = ANY(%(oids)s))"""


_ANYBODY = "SELECT EXISTS (SELECT FROM pg_stat_get_activity(NULL) WHERE datid = ANY(%s))"


def anything(connection: Connection, oids: Iterable[int]) -> bool:
    """Say whether any session or obstacle needs a closer look: the quick question."""
    row = connection.execute(_ANYTHING, {"oids": list(oids)}).fetchone()
    return row != (False,)


def ask(connection: Connection, names: Iterable[str]) -> list[Obstacle]:
    """Return what stands in the way of the databases, in one round trip."""
    return [Obstacle(*row) for row in connection.execute(_QUESTION, {"names": list(names)})]


def clearing(obstacle: Obstacle) -> tuple[str, ...]:
    """Return the statements that clear an obstacle, to be run while connected to its database."""
    if obstacle.kind == "prepared":
        return (f"ROLLBACK PREPARED {literal(obstacle.subject)}",)
    if obstacle.kind == "slot":
        return (f"SELECT pg_terminate_backend({obstacle.pid})", f"SELECT pg_drop_replication_slot({literal(obstacle.subject)})")
    one = quoted(obstacle.subject)
    return (f"ALTER SUBSCRIPTION {one} DISABLE", f"ALTER SUBSCRIPTION {one} SET (slot_name = NONE)", f"DROP SUBSCRIPTION {one}")


def explain(obstacle: Obstacle, *, role: str) -> ResetFailed:
    """Return the failure that names an obstacle and what clears it; `role` is the one that may not end a session."""
    if obstacle.kind == "session":
        grant = f"As a superuser: GRANT pg_signal_backend TO {quoted(role)}; or close that session."
        return ResetFailed(
            f"database {obstacle.database!r} is in use by pid {obstacle.pid}, user {obstacle.user!r}, "
            f"application {obstacle.application!r}, which role {role!r} may not end",
            next="Only a superuser can end it; close that session." if obstacle.superuser else grant,
        )
    finding = {
        "prepared": f"the prepared transaction {obstacle.subject!r} of {obstacle.user!r}",
        "slot": f"the active replication slot {obstacle.subject!r} (pid {obstacle.pid})",
        "subscription": f"the subscription {obstacle.subject!r}",
    }[obstacle.kind]
    return ResetFailed(
        f"database {obstacle.database!r} has {finding}",
        next=f"Run, connected to {obstacle.database!r}: {'; '.join(clearing(obstacle))}.",
    )


def sessions(connection: Connection, names: Iterable[str]) -> list[tuple[str, EndedSession]]:
    """Return the client sessions on the databases, each with its database's name."""
    quick = "SELECT EXISTS (SELECT FROM pg_stat_get_activity(NULL) JOIN pg_database d ON d.oid = datid WHERE d.datname = ANY(%s))"
    if connection.execute(quick, [list(names)]).fetchone() == (False,):
        return []
    rows = connection.execute(
        f"SELECT a.datname::text, a.pid, a.usename::text, a.application_name, a.state FROM pg_stat_activity a"  # noqa: S608  # constant parts
        f" WHERE a.datname = ANY(%s) AND {_CLIENTS}",
        [list(names)],
    )
    return [(row[0], EndedSession(*row[1:])) for row in rows]


def quiet(connection: Connection, oids: Iterable[int], *, on_ended: OnEnded | None = None) -> None:
    """End every client session on the databases and wait, by the millisecond, until none is left.

    Polls by itself: renames, drops and clones wait for other sessions in steps of 100 ms; and ends anew in each turn, since
    a session that was just starting appears late. Raises ResetFailed after 15 seconds.
    """
    wanted, deadline = list(oids), time.monotonic() + QUIET_TIMEOUT
    while connection.execute(_ANYBODY, [wanted]).fetchone() != (False,):
        left = connection.execute(_END, {"oids": wanted}).fetchall()
        if not left:
            return
        for row in left:
            if on_ended and row[5]:
                on_ended(row[0], EndedSession(*row[1:5]))
        if time.monotonic() > deadline:
            _, pid, user, application, *_ = left[0]
            raise ResetFailed(
                f"the session of pid {pid}, user {user!r}, application {application!r} does not end",
                next=f"End it by hand: SELECT pg_terminate_backend({pid}).",
            )
        time.sleep(PAUSE)


def persistently(connection: Connection, oids: Sequence[int], statement: str, *, on_ended: OnEnded | None = None) -> None:
    """Execute a statement that needs the databases quiet; whenever sessions came in meanwhile, end them and try again.

    Raises the server's error when the databases are still in use after 15 seconds.
    """
    deadline = time.monotonic() + QUIET_TIMEOUT
    while not _executed(connection, statement, or_fail=time.monotonic() > deadline):
        quiet(connection, oids, on_ended=on_ended)


def _executed(connection: Connection, statement: str, *, or_fail: bool) -> bool:
    from harness.database import Error

    try:
        connection.execute(statement.encode())
    except Error as error:
        if error.sqlstate != IN_USE or or_fail:
            raise
        return False
    return True


def drop(connection: Connection, row: DatabaseRow) -> None:
    """Drop a database of ours that no name leads to any more: closed first, its sessions ended."""
    name = quoted(row.name)
    with failing_as(f"database {row.name!r} cannot be closed"):
        if not row.invalid:
            unmark = f"ALTER DATABASE {name} IS_TEMPLATE false; " if row.is_template else ""
            connection.execute(f"{unmark}ALTER DATABASE {name} ALLOW_CONNECTIONS false".encode())
        quiet(connection, [row.oid])
    drop_closed(connection, row.name, row.oid)


def drop_closed(connection: Connection, name: str, oid: int) -> None:
    """Drop a closed, quiet database: plainly, by force only as the second step.

    By force alone would fail for an ordinary role while autovacuum is at work. No time-out stands on the drop: one that is
    cancelled leaves an invalid database.
    """
    with failing_as(f"database {name!r} cannot be dropped"):
        if not _executed(connection, f"DROP DATABASE IF EXISTS {quoted(name)}", or_fail=False):
            quiet(connection, [oid])
            connection.execute(f"DROP DATABASE IF EXISTS {quoted(name)} WITH (FORCE)".encode())


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
