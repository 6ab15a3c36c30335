"""A migrated database, built aside and kept sealed under a name made from everything it depends on."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from harness import attributes, streams
from harness.database import DatabaseRow, Server, end_sessions, failing_as, literal, quoted, sessions
from harness.errors import ResetFailed
from harness.targets import Dsn, SafeTarget, Stamp, derived_name

if TYPE_CHECKING:
    from harness.database import Connection

FORMAT = "1"
"""Part of every fingerprint: raised when a template is built in another way."""
KEPT = 3
"""Fingerprints kept per role, so that switching branches is instant."""
QUIET_TIMEOUT = 15.0
"""Seconds until sessions that were asked to end must be gone."""


class Recipe(NamedTuple):
    """All that a target's database is built from; `fingerprint` is None where nothing may be cached."""

    target: SafeTarget
    maintenance: Dsn
    application: Dsn | None
    plan: streams.Plan
    shell: Mapping[str, str]
    own_cluster: bool
    stamp: Stamp
    fingerprint: str | None

    @property
    def new(self) -> str:
        """The name under which the next database is built."""
        return scratch_name("new", self.target.dsn.name)

    @property
    def old(self) -> str:
        """The name under which the previous database leaves."""
        return scratch_name("old", self.target.dsn.name)

    @property
    def template(self) -> str:
        """The template's name; only where there is a fingerprint."""
        return derived_name("tpl", self.fingerprint or "")


def scratch_name(kind: str, name: str) -> str:
    """Return the derived name beside the database `name`: one per name, so that its lock guards it and a killed run's is found."""
    return derived_name(kind, hashlib.sha256(name.encode()).hexdigest())


def context(server: Server, target: SafeTarget, *, worktree: str, own_cluster: bool) -> list[str]:
    """Return what a template depends on beside the streams."""
    return [FORMAT, target.role, target.dsn.user, worktree, str(server.version), server.locale, str(own_cluster)]


def usable(recipe: Recipe, databases: Mapping[str, DatabaseRow]) -> bool:
    """Say whether the recipe's template stands, complete and sealed, with our stamp."""
    row = databases.get(recipe.template) if recipe.fingerprint else None
    return (
        row is not None
        and not row.invalid
        and not row.allows_connections
        and _is_ours(row, recipe)
        and _fingerprint(row) == recipe.fingerprint
    )


def _is_ours(row: DatabaseRow, recipe: Recipe) -> bool:
    return row.stamp is not None and (row.stamp.worktree, row.stamp.role) == (recipe.stamp.worktree, recipe.target.role)


def _fingerprint(row: DatabaseRow) -> str | None:
    return row.stamp.fingerprint if row.stamp else None


def clone(connection: Connection, recipe: Recipe, server: Server) -> None:
    """Make the recipe's new database from its template."""
    # With fsync off copying files wins, with fsync on writing them to the WAL does; before 15 there is no choice.
    strategy = f" STRATEGY {'wal_log' if server.fsync else 'file_copy'}" if server.version >= 150000 else ""  # noqa: PLR2004  # PostgreSQL 15
    with failing_as(f"template {recipe.template!r} cannot be cloned for {recipe.target.dsn.name!r}"):
        _create(connection, f"{quoted(recipe.new)} TEMPLATE {quoted(recipe.template)} OWNER {quoted(recipe.target.dsn.user)}{strategy}")


def build(connection: Connection, recipe: Recipe, *, exists: bool) -> int:
    """Make the recipe's new database from template0 and apply every stream; return how many files and commands were applied.

    What the streams do to the database under its literal name happens to the previous one (an empty, closed one where
    there is none) and is carried over. Raises ResetFailed, the previous database as it was.
    """
    target = recipe.target
    with failing_as(f"database {recipe.new!r} cannot be made for {target.dsn.name!r}"):
        _create(connection, f"{quoted(recipe.new)} TEMPLATE template0 ENCODING 'UTF8' OWNER {quoted(target.dsn.user)}")
        if recipe.own_cluster:
            connection.execute(f"REVOKE CONNECT ON DATABASE {quoted(recipe.new)} FROM PUBLIC".encode())
        if not exists:
            _place_holder(connection, recipe)
        found = attributes.capture(connection, [recipe.new, target.dsn.name])
        base, before = found[recipe.new], found[target.dsn.name]
        _give(connection, target.dsn.name, target.dsn.user, now=before, wanted=base)
    applied: list[str] | None = None
    try:
        owner, maintenance = target.dsn.at(recipe.new), recipe.maintenance.at(recipe.new)
        applied = streams.apply(recipe.plan, owner, maintenance, application=recipe.application, shell=recipe.shell)
    finally:
        with failing_as(f"settings of database {target.dsn.name!r} cannot be carried over"):
            found = attributes.capture(connection, [recipe.new, target.dsn.name])
            if applied is not None:
                wanted = attributes.merged(found[recipe.new], literal_name=found[target.dsn.name], base=base)
                _give(connection, recipe.new, target.dsn.user, now=found[recipe.new], wanted=wanted)
            _give(connection, target.dsn.name, target.dsn.user, now=found[target.dsn.name], wanted=before)
            # A migration may have written its own comment over the stamp.
            comment = (target.stamp or recipe.stamp._replace(fingerprint="")).text()
            connection.execute(f"COMMENT ON DATABASE {quoted(target.dsn.name)} IS {literal(comment)}".encode())
    return len(applied)


def _create(connection: Connection, rest: str) -> None:
    connection.execute(f"CREATE DATABASE {rest}".encode())


def _give(connection: Connection, name: str, owner: str, *, now: attributes.Attributes, wanted: attributes.Attributes) -> None:
    statements = attributes.restoring(name, owner, now=now, wanted=wanted)
    if statements:
        connection.execute("; ".join(statements).encode())


def _place_holder(connection: Connection, recipe: Recipe) -> None:
    name, old = recipe.target.dsn.name, quoted(recipe.old)
    _create(connection, f"{old} TEMPLATE template0 ENCODING 'UTF8' OWNER {quoted(recipe.target.dsn.user)}")
    connection.execute(
        f"ALTER DATABASE {old} ALLOW_CONNECTIONS false; COMMENT ON DATABASE {old} IS {literal(recipe.stamp._replace(fingerprint='').text())};"
        f" ALTER DATABASE {old} RENAME TO {quoted(name)}".encode()
    )


def publish(connection: Connection, recipe: Recipe, databases: Mapping[str, DatabaseRow]) -> None:
    """Seal the built database and give it the template's name in one step; older fingerprints of its role go."""
    stale = databases.get(recipe.template)
    if stale is not None:
        drop(connection, stale)
    new = quoted(recipe.new)
    with failing_as(f"template {recipe.template!r} cannot be published"):
        quiet(connection, [_oid(connection, recipe.new)])
        owner = f"ALTER DATABASE {new} OWNER TO {quoted(recipe.maintenance.user)}; " if recipe.own_cluster else ""
        stamp = recipe.stamp._replace(fingerprint=recipe.fingerprint or "")
        connection.execute(
            f"ALTER DATABASE {new} ALLOW_CONNECTIONS false; {owner}COMMENT ON DATABASE {new} IS {literal(stamp.text())};"
            f" ALTER DATABASE {new} RENAME TO {quoted(recipe.template)}".encode()
        )
    older = [row for row in databases.values() if row.name.startswith(derived_name("tpl", "")) and _is_ours(row, recipe) and row != stale]
    older.sort(key=lambda row: row.stamp.time if row.stamp else 0.0, reverse=True)
    for row in older[KEPT - 1 :]:
        drop(connection, row)


def touch(connection: Connection, recipe: Recipe, databases: Mapping[str, DatabaseRow]) -> None:
    """Note that the recipe's template was used, where a newer one stands beside it."""
    times = {
        row.name: row.stamp.time
        for row in databases.values()
        if row.stamp and row.name.startswith(derived_name("tpl", "")) and _is_ours(row, recipe)
    }
    if times and max(times, key=times.__getitem__) != recipe.template:
        stamp = recipe.stamp._replace(fingerprint=recipe.fingerprint or "", time=time.time())
        connection.execute(f"COMMENT ON DATABASE {quoted(recipe.template)} IS {literal(stamp.text())}".encode())


def _oid(connection: Connection, name: str) -> int:
    row = connection.execute("SELECT oid FROM pg_database WHERE datname = %s", [name]).fetchone()
    if row is None:
        raise ResetFailed(
            f"database {name!r} vanished while it was being made",
            next="Run `inv reset` again; nothing else may use names beginning with harness_.",
        )
    return int(row[0])


def quiet(connection: Connection, oids: Iterable[int], *, on_ended: Callable[[int, object], None] | None = None) -> None:
    """End every client session on the databases and wait, by the millisecond, until none is left.

    Polls by itself: renames, drops and clones wait for other sessions in steps of 100 ms. Raises ResetFailed after
    15 seconds.
    """
    wanted, deadline = list(oids), time.monotonic() + QUIET_TIMEOUT
    while True:
        for oid, session in end_sessions(connection, wanted):
            if on_ended:
                on_ended(oid, session)
        left = sessions(connection, wanted)
        if not left:
            return
        if time.monotonic() > deadline:
            _, session = left[0]
            raise ResetFailed(
                f"the session of pid {session.pid}, user {session.user!r}, application {session.application!r} does not end",
                next=f"End it by hand: SELECT pg_terminate_backend({session.pid}).",
            )
        time.sleep(0.001)


def drop(connection: Connection, row: DatabaseRow) -> None:
    """Drop a database of ours that no name leads to any more: closed first, then a plain drop, by force only as the second step.

    No time-out stands on the drop itself: one that is cancelled leaves an invalid database.
    """
    from harness.database import Error

    name = quoted(row.name)
    with failing_as(f"database {row.name!r} cannot be dropped"):
        if not row.invalid:
            if row.is_template:
                connection.execute(f"ALTER DATABASE {name} IS_TEMPLATE false".encode())
            connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false".encode())
        quiet(connection, [row.oid])
        try:
            connection.execute(f"DROP DATABASE IF EXISTS {name}".encode())
        except Error as error:
            if error.sqlstate != "55006":
                raise
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())
