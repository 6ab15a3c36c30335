"""A migrated database, built aside and kept sealed under a name made from everything it depends on."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness import attributes, obstacles, reach, streams
from harness.attributes import Attributes
from harness.database import DatabaseRow, Server, failing_as, literal, quoted
from harness.errors import ResetFailed
from harness.targets import REPLACES, Dsn, SafeTarget, Stamp, derived_name, name_beside

if TYPE_CHECKING:
    from harness.database import Connection

KEPT = 3
"""Fingerprints kept per role, so that switching branches is instant."""
BUILDERS = (*("attributes", "commands", "database", "folders", "ledger", "process", "scripts", "sql", "streams", "templates"),)
"""The modules whose code decides what a template holds: their bytes are part of every fingerprint."""
PREFIX = derived_name("tpl", "")
_OUTSIDE = re.compile(r"\b(?:(?:ALTER|ON|IN)\s+DATABASE|(?:CREATE|ALTER|DROP)\s+(?:ROLE|USER|GROUP))\b", re.IGNORECASE)


class Recipe(NamedTuple):
    """All that a target's database is built from; `fingerprint` is None where nothing may be cached."""

    target: SafeTarget
    maintenance: Dsn
    application: Dsn | None
    protected: tuple[str, ...]
    plan: streams.Plan
    shell: Mapping[str, str]
    server: Server
    own_cluster: bool
    stamp: Stamp
    fingerprint: str | None

    @property
    def name(self) -> str:
        """The target's name."""
        return self.target.dsn.name

    @property
    def new(self) -> str:
        """The name under which the next database is built."""
        return name_beside("new", self.name)

    @property
    def old(self) -> str:
        """The name under which the previous database leaves."""
        return name_beside("old", self.name)

    @property
    def template(self) -> str:
        """The template's name; only where there is a fingerprint."""
        return derived_name("tpl", self.fingerprint or "")

    def is_ours(self, row: DatabaseRow) -> bool:
        """Say whether a database carries this worktree's stamp for the target's role."""
        return row.stamp is not None and (row.stamp.worktree, row.stamp.role) == (self.stamp.worktree, self.stamp.role)


def runner_version() -> str:
    """Return a hash of the code that builds templates: a warm one must not hide a change in it."""
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    for name in BUILDERS:
        digest.update((folder / f"{name}.py").read_bytes())
    return digest.hexdigest()


def context(server: Server, target: SafeTarget, maintenance: Dsn, *, worktree: str, own_cluster: bool) -> list[str]:
    """Return what a template depends on beside the streams; the migrations may see each of these."""
    of_target = [target.role, target.dsn.user, target.dsn.name, maintenance.user, worktree, str(own_cluster)]
    return [runner_version(), *of_target, str(server.version), server.locale]


def is_usable(recipe: Recipe, databases: Mapping[str, DatabaseRow]) -> bool:
    """Say whether the recipe's template stands, complete, sealed and out of the test role's hands, with our stamp."""
    row = databases.get(recipe.template) if recipe.fingerprint else None
    if row is None or row.stamp is None:
        return False
    sealed = not row.invalid and not row.allows_connections and row.owner == recipe.maintenance.user
    return sealed and recipe.is_ours(row) and row.stamp.fingerprint == recipe.fingerprint


def clone(connection: Connection, recipe: Recipe) -> None:
    """Make the recipe's new database from its template."""
    # With fsync off copying files wins, with fsync on writing them to the WAL does; before 15 there is no choice.
    strategy = f" STRATEGY {'wal_log' if recipe.server.fsync else 'file_copy'}" if recipe.server.version >= 150000 else ""  # noqa: PLR2004  # PostgreSQL 15
    owner = f"OWNER {quoted(recipe.target.dsn.user)}"
    connection.execute(f"CREATE DATABASE {quoted(recipe.new)} TEMPLATE {quoted(recipe.template)} {owner}{strategy}".encode())


class Guise:
    """While streams are applied to a database under another name: what they do to it under its literal name is caught.

    It happens to the previous database, closed or open as it is, or to an empty, closed one where there is none; `remove`
    gives that one back what it had.
    """

    def __init__(self, connection: Connection, recipe: Recipe, *, exists: bool) -> None:
        self._recipe = recipe
        if not exists:
            _place_holder(connection, recipe)
        # Whatever a migration does to the previous one's stamp, and should this process be killed then: the new one says whose it is.
        self.oid = find_oid(connection, recipe.name)
        stamp = recipe.stamp._replace(fingerprint=f"{REPLACES}{self.oid}")
        connection.execute(f"COMMENT ON DATABASE {quoted(recipe.new)} IS {literal(stamp.text())}".encode())
        found = attributes.capture(connection, [recipe.new, recipe.name])
        self._base, self._before = found[recipe.new], found[recipe.name]

    def put_on(self, connection: Connection) -> None:
        """Make the previous database look like the new one, whatever another database's streams did to it."""
        self._give(connection, self._recipe.name, self._base)

    def carry_over(self, connection: Connection) -> None:
        """Give the new database what happened under its literal name."""
        found = attributes.capture(connection, [self._recipe.new, self._recipe.name])
        now = found[self._recipe.new]
        self._give(connection, self._recipe.new, attributes.merged(now, literal_name=found[self._recipe.name], base=self._base))

    def remove(self, connection: Connection) -> None:
        """Give the previous database its own attributes and stamp again: a migration may have written over it."""
        recipe = self._recipe
        stamp = recipe.target.stamp or recipe.stamp._replace(fingerprint="")
        connection.execute(f"COMMENT ON DATABASE {quoted(recipe.name)} IS {literal(stamp.text())}".encode())
        self._give(connection, recipe.name, self._before)

    def _give(self, connection: Connection, name: str, wanted: Attributes) -> None:
        now = attributes.capture(connection, [name])[name]
        statements = attributes.restoring(name, self._recipe.target.dsn.user, now=now, wanted=wanted)
        if statements:
            connection.execute("; ".join(statements).encode())


def _place_holder(connection: Connection, recipe: Recipe) -> None:
    _create(connection, recipe, recipe.old)
    old = quoted(recipe.old)
    connection.execute(
        f"ALTER DATABASE {old} ALLOW_CONNECTIONS false; COMMENT ON DATABASE {old} IS {literal(recipe.stamp._replace(fingerprint='').text())};"
        f" ALTER DATABASE {old} RENAME TO {quoted(recipe.name)}".encode()
    )


def _create(connection: Connection, recipe: Recipe, name: str) -> None:
    """Make an empty database in UTF-8; where the server's own locale is of another encoding, in the one locale that fits all."""
    row = connection.execute("SELECT pg_encoding_to_char(encoding) FROM pg_database WHERE datname = 'template0'").fetchone()
    locale = "" if row in (("UTF8",), ("SQL_ASCII",)) else " LC_COLLATE 'C' LC_CTYPE 'C'"
    owner = quoted(recipe.target.dsn.user)
    connection.execute(f"CREATE DATABASE {quoted(name)} TEMPLATE template0 ENCODING 'UTF8'{locale} OWNER {owner}".encode())


def reaches_out(plan: streams.Plan) -> bool:
    """Say whether the streams may act on more than their database: on one by its literal name, on roles; a command always may."""
    return any(of.stream.command or any(_OUTSIDE.search(file.text) for file in of.files) for of in plan.streams)


def lay(connection: Connection, recipe: Recipe) -> None:
    """Make the recipe's new database, empty."""
    with failing_as(f"database {recipe.new!r} cannot be made for {recipe.name!r}"):
        _create(connection, recipe, recipe.new)
        if recipe.own_cluster:
            connection.execute(f"REVOKE CONNECT ON DATABASE {quoted(recipe.new)} FROM PUBLIC".encode())


def fill(recipe: Recipe) -> int:
    """Apply every stream to the recipe's new database; return how many files and commands were applied."""
    reach.check(recipe.plan, recipe.name, recipe.protected)
    owner, maintenance = recipe.target.dsn.at(recipe.new), recipe.maintenance.at(recipe.new)
    return len(streams.apply(recipe.plan, owner, maintenance, application=recipe.application, shell=recipe.shell))


def publish(connection: Connection, recipe: Recipe, databases: Mapping[str, DatabaseRow]) -> None:
    """Seal the built database and give it the template's name in one step."""
    stale = databases.get(recipe.template)
    if stale is not None:
        obstacles.drop(connection, stale)
    new, oid = quoted(recipe.new), find_oid(connection, recipe.new)
    stamp = recipe.stamp._replace(fingerprint=recipe.fingerprint or "")
    with failing_as(f"template {recipe.template!r} cannot be published"):
        connection.execute(f"ALTER DATABASE {new} ALLOW_CONNECTIONS false".encode())
        obstacles.quiet(connection, [oid])
        # A role that owns a template could open it and forge its comment.
        obstacles.persistently(
            connection,
            [oid],
            f"ALTER DATABASE {new} OWNER TO {quoted(recipe.maintenance.user)}; COMMENT ON DATABASE {new} IS {literal(stamp.text())};"
            f" ALTER DATABASE {new} RENAME TO {quoted(recipe.template)}",
        )


def find_oid(connection: Connection, name: str) -> int:
    """Return the oid of a database that we have just made."""
    row = connection.execute("SELECT oid FROM pg_database WHERE datname = %s", [name]).fetchone()
    if row is None:
        raise ResetFailed(
            f"database {name!r} vanished while it was being made",
            next="Run `inv reset` again; nothing else may use names beginning with harness_.",
        )
    return int(row[0])


def touch(connection: Connection, recipe: Recipe, databases: Mapping[str, DatabaseRow]) -> None:
    """Note that the recipe's template was used, where a newer one stands beside it."""
    newest = max(_templates(recipe, databases), key=_time)
    if newest.name != recipe.template:
        stamp = recipe.stamp._replace(fingerprint=recipe.fingerprint or "", time=time.time())
        connection.execute(f"COMMENT ON DATABASE {quoted(recipe.template)} IS {literal(stamp.text())}".encode())


def superfluous(recipe: Recipe, databases: Mapping[str, DatabaseRow]) -> list[DatabaseRow]:
    """Return the templates of the recipe's role that go: all but the latest used, and what an interrupted drop left."""
    others = sorted((row for row in _templates(recipe, databases) if row.name != recipe.template), key=_time, reverse=True)
    whole = [row for row in others if not row.invalid]
    kept = KEPT - 1 if recipe.fingerprint else KEPT
    return [row for row in others if row.invalid or row in whole[kept:]]


def _templates(recipe: Recipe, databases: Mapping[str, DatabaseRow]) -> Iterable[DatabaseRow]:
    return [row for row in databases.values() if row.name.startswith(PREFIX) and recipe.is_ours(row)]


def _time(row: DatabaseRow) -> float:
    return row.stamp.time if row.stamp else 0.0
