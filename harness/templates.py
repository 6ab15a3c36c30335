"""A migrated database, built aside and kept sealed under a name made from everything it depends on."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness import attributes, obstacles, streams
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
_DATABASE = re.compile(r"\bdatabase\b", re.IGNORECASE)


class Recipe(NamedTuple):
    """All that a target's database is built from; `fingerprint` is None where nothing may be cached."""

    target: SafeTarget
    maintenance: Dsn
    application: Dsn | None
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
    """Return what a template depends on beside the streams."""
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
        self.recipe = recipe
        if not exists:
            _place_holder(connection, recipe)
        # Whatever a migration does to the previous one's stamp, and should this process be killed then: the new one says whose it is.
        stamp = recipe.stamp._replace(fingerprint=f"{REPLACES}{find_oid(connection, recipe.name)}")
        connection.execute(f"COMMENT ON DATABASE {quoted(recipe.new)} IS {literal(stamp.text())}".encode())
        found = attributes.capture(connection, [recipe.new, recipe.name])
        self.base, self.before = found[recipe.new], found[recipe.name]
        _give(connection, recipe.name, recipe.target.dsn.user, now=self.before, wanted=self.base)

    def carry_over(self, connection: Connection) -> None:
        """Give the new database what happened under its literal name."""
        found = attributes.capture(connection, [self.recipe.new, self.recipe.name])
        now = found[self.recipe.new]
        wanted = attributes.merged(now, literal_name=found[self.recipe.name], base=self.base)
        _give(connection, self.recipe.new, self.recipe.target.dsn.user, now=now, wanted=wanted)

    def remove(self, connection: Connection) -> None:
        """Give the previous database its own attributes and stamp again."""
        recipe = self.recipe
        stamp = recipe.target.stamp or recipe.stamp._replace(fingerprint="")
        # A migration may have written its own comment over the stamp.
        connection.execute(f"COMMENT ON DATABASE {quoted(recipe.name)} IS {literal(stamp.text())}".encode())
        now = attributes.capture(connection, [recipe.name])[recipe.name]
        _give(connection, recipe.name, recipe.target.dsn.user, now=now, wanted=self.before)


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


def may_name_it(recipe: Recipe) -> bool:
    """Say whether the streams may act on the database under its literal name: no statement can without the word, or in a command."""
    planned = recipe.plan.streams
    return any(of.stream.command or any(_DATABASE.search(file.text) for file in of.files) for of in planned)


def build(connection: Connection, recipe: Recipe, *, exists: bool, guises: dict[str, Guise]) -> int:
    """Make the recipe's new database from template0 and apply every stream; return how many files and commands were applied.

    On failure the caller removes the guise that it finds in `guises`.
    """
    with failing_as(f"database {recipe.new!r} cannot be made for {recipe.name!r}"):
        _create(connection, recipe, recipe.new)
        if recipe.own_cluster:
            connection.execute(f"REVOKE CONNECT ON DATABASE {quoted(recipe.new)} FROM PUBLIC".encode())
        if may_name_it(recipe):
            guises[recipe.target.role] = Guise(connection, recipe, exists=exists)
    owner, maintenance = recipe.target.dsn.at(recipe.new), recipe.maintenance.at(recipe.new)
    applied = streams.apply(recipe.plan, owner, maintenance, application=recipe.application, shell=recipe.shell)
    guise = guises.get(recipe.target.role)
    if guise is not None:
        with failing_as(f"settings of database {recipe.name!r} cannot be carried over"):
            guise.carry_over(connection)
            guise.remove(connection)
        del guises[recipe.target.role]
    return len(applied)


def _give(connection: Connection, name: str, owner: str, *, now: Attributes, wanted: Attributes) -> None:
    statements = attributes.restoring(name, owner, now=now, wanted=wanted)
    if statements:
        connection.execute("; ".join(statements).encode())


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
