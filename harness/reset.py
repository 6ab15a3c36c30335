"""Make the test databases pristine: checks first, build aside, swap all names in one transaction, drop the old ones last."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from harness import attributes, database, obstacles, streams, templates
from harness.database import DatabaseRow, failing_as, literal, quoted
from harness.errors import HarnessError, Refusal, ResetFailed
from harness.guard import Proof
from harness.results import DatabaseReset, EndedSession
from harness.targets import Dsn, SafeTarget, Stamp
from harness.templates import Recipe

if TYPE_CHECKING:
    from harness.database import Connection

UNCACHED = "uncached"
"""What a complete database's stamp says where no fingerprint can be made; an empty one marks a placeholder."""
ADOPTED = "adopted"
"""What the stamp of a database says that was taken over and not reset yet."""


class Order(NamedTuple):
    """What a reset is asked for: the targets and how they are built."""

    proof: Proof
    targets: tuple[SafeTarget, ...]
    plan: streams.Plan
    shell: Mapping[str, str]
    repository: str
    own_cluster: bool
    fresh: bool
    createdb: bool


class _Work:
    """One reset at work: its sessions, and what is known of each database so far."""

    def __init__(self, connection: Connection, order: Order, say: Callable[[str], None]) -> None:
        self.connection, self.order, self.say = connection, order, say
        self.maintenance = order.proof.env.dsn("maintenance")
        self.databases = dict(order.proof.databases)
        self.recipes = [_recipe(order, target, self.maintenance) for target in order.targets]
        self.warm = {recipe.target.role: not order.fresh and templates.usable(recipe, self.databases) for recipe in self.recipes}
        self.migrations: dict[str, int] = {}
        self.ended: dict[str, list[EndedSession]] = {recipe.target.role: [] for recipe in self.recipes}
        self.phases: dict[str, float] = {}
        self.clock = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.phases[phase] = round((now - self.clock) * 1000, 1)
        self.clock = now


def reset(connection: Connection, order: Order, *, say: Callable[[str], None]) -> list[DatabaseReset]:
    """Replace each target by a database that holds exactly what the streams make, and say what was in the way.

    The locks of the targets are the caller's to hold. Raises ResetFailed or Refusal, the previous databases as they
    were; which one a name leads to changes for all targets at once.
    """
    started = time.perf_counter()
    work = _Work(connection, order, say)
    _check(work)
    _sweep(work)
    work.lap("checks")
    try:
        _in_parallel(work, _make)
        work.lap("build")
        _swap(work)
        work.lap("swap")
    except BaseException:
        with suppress(database.Error, HarnessError):
            _clean_up(work)
        raise
    _in_parallel(work, _drop_old)
    work.lap("drop")
    _warn_of_sessions(work)
    ms = round((time.perf_counter() - started) * 1000)
    return [_result(work, recipe, ms) for recipe in work.recipes]


def _recipe(order: Order, target: SafeTarget, maintenance: Dsn) -> Recipe:
    root = str(order.proof.settings.root)
    context = templates.context(order.proof.server, target, worktree=root, own_cluster=order.own_cluster)
    fingerprint = streams.fingerprint(order.plan, context)
    stamp = Stamp(target.role, order.repository, root, fingerprint or UNCACHED, time.time())
    application = order.proof.env.dsns.get("application")
    return Recipe(target, maintenance, application, order.plan, order.shell, order.own_cluster, stamp, fingerprint)


def _check(work: _Work) -> None:
    """Refuse everything that can be known beforehand, before any database is touched."""
    names = [recipe.target.dsn.name for recipe in work.recipes]
    for name, gid, owner in obstacles.prepared_transactions(work.connection, names):
        if not work.order.own_cluster:
            raise ResetFailed(
                f"database {name!r} holds the prepared transaction {gid!r} of {owner!r}",
                next=f"Run, connected to {name!r}: ROLLBACK PREPARED {literal(gid)}.",
            )
        _roll_back_prepared(work, name, gid)
    for blocker in obstacles.blockers(work.connection, names):
        raise ResetFailed(
            f"database {blocker.database!r} has {blocker.finding}", next=f"Run, connected to {blocker.database!r}: {blocker.statement}."
        )
    _check_sessions(work)
    if not all(work.warm.values()):
        _check_extensions(work)


def _check_sessions(work: _Work) -> None:
    oids = [recipe.target.oid for recipe in work.recipes if recipe.target.oid is not None]
    for oid, session, superuser in database.sessions_beyond_us(work.connection, oids):
        name = next(recipe.target.dsn.name for recipe in work.recipes if recipe.target.oid == oid)
        grant = f"GRANT pg_signal_backend TO {quoted(work.order.proof.server.role)}"
        raise ResetFailed(
            f"database {name!r} is in use by pid {session.pid}, user {session.user!r}, application {session.application!r}, "
            f"which role {work.order.proof.server.role!r} may not end",
            next="Only a superuser can end it; close that session." if superuser else f"As a superuser: {grant}; or close that session.",
        )


def _check_extensions(work: _Work) -> None:
    wanted = streams.extensions(work.order.plan)
    if not wanted:
        return
    known = {row[0] for row in work.connection.execute("SELECT name::text FROM pg_available_extensions")}
    for name, (file, line) in wanted.items():
        if name not in known:
            raise ResetFailed(
                f"{file}:{line} asks for the extension {name!r}, which this server lacks",
                next="Install it on the server (for contrib modules the postgresql-contrib package), or use a server that has it.",
            )


def _roll_back_prepared(work: _Work, name: str, gid: str) -> None:
    with failing_as(f"prepared transaction {gid!r} in database {name!r} cannot be rolled back"):
        work.connection.execute(f"ALTER DATABASE {quoted(name)} ALLOW_CONNECTIONS true".encode())
        with database.connect(work.maintenance.at(name), purpose="roll back prepared") as inside:
            inside.execute(f"ROLLBACK PREPARED {literal(gid)}".encode())
    work.say(f"rolled back the prepared transaction {gid!r} that was left in database {name!r}")


def _sweep(work: _Work) -> None:
    """Drop what a killed reset of these targets left, an unusable target, and what their roles made where `createdb` lets them."""
    for recipe in work.recipes:
        target = recipe.target
        for row in list(work.databases.values()):
            ours = row.stamp is not None and (row.stamp.worktree, row.stamp.role) == (recipe.stamp.worktree, target.role)
            rubble = row.name in (recipe.new, recipe.old) and (row.stamp is None or ours)
            invalid = row.name == target.dsn.name and row.invalid
            made_by_role = (
                work.order.createdb
                and work.order.own_cluster
                and row.owner == target.dsn.user
                and row.name != target.dsn.name
                and row.stamp is None
            )
            if rubble or invalid or made_by_role:
                templates.drop(work.connection, row)
                del work.databases[row.name]
            elif row.name in (recipe.new, recipe.old):
                raise Refusal(
                    f"database {row.name!r} is in the way and carries another worktree's stamp", next="Drop it by hand if nobody needs it."
                )


def _in_parallel(work: _Work, step: Callable[[_Work, Recipe, Connection], None]) -> None:
    """Run `step` for every recipe at once, each on a session of its own; commands run one after another."""
    if len(work.recipes) == 1 or any(stream.command for stream in work.order.proof.settings.streams):
        for recipe in work.recipes:
            step(work, recipe, work.connection)
        return
    connections = [work.connection]
    try:
        connections += [database.connect(work.maintenance, purpose="reset") for _ in work.recipes[1:]]
        pairs = zip(work.recipes, connections, strict=True)
        _concurrently([partial(step, work, *pair) for pair in pairs], cancel=partial(_cancel, connections))
    finally:
        for connection in connections[1:]:
            connection.close()


def _cancel(connections: Sequence[Connection]) -> None:
    for connection in connections:
        connection.cancel_safe()


def _concurrently(jobs: Sequence[Callable[[], None]], *, cancel: Callable[[], object]) -> None:
    """Run the jobs in threads to the end of each, then raise the first failure; a signal cancels what is at work in the server."""
    failures: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001  # raised again in the main thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=[job]) for job in jobs]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        cancel()
        for thread in threads:
            if thread.ident:
                thread.join()
        raise
    if failures:
        raise failures[0]


def _make(work: _Work, recipe: Recipe, connection: Connection) -> None:
    role = recipe.target.role
    if work.warm[role]:
        templates.clone(connection, recipe, work.order.proof.server)
        templates.touch(connection, recipe, work.databases)
        work.migrations[role] = 0
        return
    work.migrations[role] = templates.build(connection, recipe, exists=recipe.target.dsn.name in work.databases)
    if recipe.fingerprint and not work.order.fresh:
        templates.publish(connection, recipe, work.databases)
        templates.clone(connection, recipe, work.order.proof.server)


def _swap(work: _Work) -> None:
    """Close the old databases, end their sessions, and change all names in one transaction."""
    names = [recipe.target.dsn.name for recipe in work.recipes]
    rows = work.connection.execute("SELECT datname::text, oid FROM pg_database WHERE datname = ANY(%s)", [names])
    old: dict[str, int] = dict(rows.fetchall())
    roles = {oid: recipe.target.role for recipe in work.recipes for name, oid in old.items() if name == recipe.target.dsn.name}
    with failing_as("the new databases cannot take their names"):
        if old:
            work.connection.execute("; ".join(f"ALTER DATABASE {quoted(name)} ALLOW_CONNECTIONS false" for name in old).encode())
        _check_sessions(work)
        templates.quiet(work.connection, old.values(), on_ended=lambda oid, session: _note(work.ended[roles[oid]], session))
        sources = {recipe.new: recipe.template if recipe.fingerprint and not work.order.fresh else recipe.new for recipe in work.recipes}
        found = attributes.capture(work.connection, [*sources, *sources.values()])
        statements = []
        for recipe in work.recipes:
            name, new = recipe.target.dsn.name, recipe.new
            statements += attributes.restoring(new, recipe.target.dsn.user, now=found[new], wanted=found[sources[new]])
            if name in old:
                statements.append(f"ALTER DATABASE {quoted(name)} RENAME TO {quoted(recipe.old)}")
            statements.append(f"ALTER DATABASE {quoted(new)} RENAME TO {quoted(name)}")
            statements.append(f"COMMENT ON DATABASE {quoted(name)} IS {literal(recipe.stamp.text())}")
        # Without BEGIN one string is one transaction that no error leaves open.
        work.connection.execute("; ".join(statements).encode())


def _note(ended: list[EndedSession], session: object) -> None:
    if isinstance(session, EndedSession) and all(session.pid != known.pid for known in ended):
        ended.append(session)


def _drop_old(_work: _Work, recipe: Recipe, connection: Connection) -> None:
    row = database.ask_databases(connection).get(recipe.old)
    if row is not None:
        templates.drop(connection, row)


def _clean_up(work: _Work) -> None:
    """After a failure: nothing half-made stays, and the previous databases are open again."""
    work.databases = database.ask_databases(work.connection)
    _sweep(work)
    for recipe in work.recipes:
        row = work.databases.get(recipe.target.dsn.name)
        if row is None or row.allows_connections:
            continue
        if row.stamp is not None and not row.stamp.fingerprint:
            templates.drop(work.connection, row)
        else:
            work.connection.execute(f"ALTER DATABASE {quoted(row.name)} ALLOW_CONNECTIONS true".encode())


def _warn_of_sessions(work: _Work) -> None:
    found = database.ask_databases(work.connection)
    oids = {found[recipe.target.dsn.name].oid: recipe.target.dsn.name for recipe in work.recipes if recipe.target.dsn.name in found}
    present: dict[str, list[EndedSession]] = {}
    for oid, session in database.sessions(work.connection, oids):
        present.setdefault(oids[oid], []).append(session)
    for name, there in present.items():
        whose = ", ".join(sorted({f"{session.user} ({session.application or 'no application_name'})" for session in there}))
        work.say(f"warning: {len(there)} foreign session(s) are already on the new database {name!r}: {whose}")


def _result(work: _Work, recipe: Recipe, ms: int) -> DatabaseReset:
    role = recipe.target.role
    source = "template" if work.warm[role] else "migrated"
    return DatabaseReset(
        name=recipe.target.dsn.name,
        role=role,
        source=source,
        fingerprint=recipe.fingerprint,
        migrations=work.migrations[role],
        ended=tuple(work.ended[role]),
        ms=ms,
        phases=dict(work.phases),
    )


def complete(row: DatabaseRow) -> bool:
    """Say whether a stamped database is one that a reset finished."""
    return row.allows_connections and not row.invalid and row.stamp is not None and row.stamp.fingerprint not in ("", ADOPTED)


def stamp(connection: Connection, target: SafeTarget, *, worktree: str, repository: str) -> None:
    """Mark an adopted database as this worktree's, incomplete until its first reset."""
    text = Stamp(target.role, repository, worktree, ADOPTED, time.time()).text()
    with failing_as(f"database {target.dsn.name!r} cannot be stamped"):
        connection.execute(f"COMMENT ON DATABASE {quoted(target.dsn.name)} IS {literal(text)}".encode())
