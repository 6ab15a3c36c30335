"""Make the test databases pristine: checks first, build aside, swap all names in one transaction, drop the old ones last."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from harness import attributes, database, obstacles, streams, templates
from harness.build import Build
from harness.clearance import Clearance
from harness.crew import Crew
from harness.database import DatabaseRow, failing_as, literal, quoted
from harness.errors import HarnessError, ResetFailed
from harness.guard import Proof
from harness.results import DatabaseReset, EndedSession
from harness.targets import REPLACES, SafeTarget, Stamp
from harness.templates import Recipe

if TYPE_CHECKING:
    from harness.database import Connection

UNCACHED = "uncached"
"""What a complete database's stamp says where no fingerprint can be made; an empty one marks a placeholder."""
ADOPTED = "adopted"
"""What the stamp of a database says that was taken over and not reset yet."""


class Order(NamedTuple):
    """What a reset is asked for: the targets and how they are built.

    With a `salt` templates are this run's own: made from zero the first time, and used by no other run.
    """

    proof: Proof
    targets: tuple[SafeTarget, ...]
    plan: streams.Plan
    shell: Mapping[str, str]
    repository: str
    own_cluster: bool
    fresh: bool
    createdb: bool
    salt: str = ""


class Work:
    """One reset at work: its sessions, and what is known of each database so far, by role."""

    def __init__(self, connection: Connection, order: Order, say: Callable[[str], None]) -> None:
        self.connection, self.order, self.say = connection, order, say
        self.databases = dict(order.proof.databases)
        self.recipes = [make_recipe(order, target) for target in order.targets]
        self.clearance = Clearance(connection, self.recipes, self.databases, order.proof.server.role, say)
        self.build = Build(connection, self.recipes, self.databases, say, fresh=order.fresh)
        self.ended: dict[str, list[EndedSession]] = {recipe.target.role: [] for recipe in self.recipes}
        self.old: dict[str, int] = {}
        self.phases: dict[str, float] = {}
        self.clock = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Note how long the phase took that ends now."""
        now = time.perf_counter()
        self.phases[phase] = round((now - self.clock) * 1000, 1)
        self.clock = now


def reset(connection: Connection, order: Order, crew: Crew, *, say: Callable[[str], None]) -> list[DatabaseReset]:
    """Replace each target by a database that holds exactly what the streams make, and say what was in the way.

    The locks of the targets are the caller's to hold. Raises ResetFailed or Refusal, the previous databases as they
    were; which one a name leads to changes for all targets at once.
    """
    started = time.perf_counter()
    try:
        with failing_as("the reset was cut short", next="Run `inv reset` again; it clears up what is left."):
            work = Work(connection, order, say)
            crew.begin(work.build.look_ahead)
            _reset(work, crew)
    finally:
        crew.close()
    ms = round((time.perf_counter() - started) * 1000)
    return [_result(work, recipe, ms) for recipe in work.recipes]


def _reset(work: Work, crew: Crew) -> None:
    check(work)
    work.lap("checks")
    try:
        work.build.run(crew)
        work.lap("build")
        swap(work)
        work.lap("swap")
    except BaseException:
        with suppress(database.Error, HarnessError):
            _clean_up(work)
        raise
    crew.run(work.connection, [partial(_drop_old, work, recipe) for recipe in work.recipes], on_interrupt=lambda _: None)
    _warn_of_sessions(work)
    work.lap("drop")


def make_recipe(order: Order, target: SafeTarget) -> Recipe:
    """Return what the target's next database is built from."""
    root, env, server = str(order.proof.settings.root), order.proof.env, order.proof.server
    maintenance = env.dsn("maintenance")
    context = templates.context(server, target, maintenance, worktree=root, own_cluster=order.own_cluster)
    fingerprint = streams.fingerprint(order.plan, [*context, order.salt] if order.salt else context)
    if order.salt and fingerprint is None:
        fingerprint = sha256(f"{order.salt} {target.role}".encode()).hexdigest()
    stamp = Stamp(target.role, order.repository, root, fingerprint or UNCACHED, time.time())
    application = env.dsns.get("application")
    protected = tuple(each.dsn.name for each in order.proof.protected)
    return Recipe(target, maintenance, application, protected, order.plan, order.shell, server, order.own_cluster, stamp, fingerprint)


def check(work: Work) -> None:
    """Refuse everything that can be known beforehand, before any database is touched; drop what a killed reset left."""
    clearance = work.clearance
    clearance.check([name for recipe in work.recipes for name in (recipe.name, recipe.new, recipe.old)])
    if not all(work.build.warm.values()):
        streams.check_extensions(work.order.plan, work.connection)
    for recipe in work.recipes:
        clearance.sweep(recipe)


def swap(work: Work) -> None:
    """Close the old databases, end their sessions, and change all names in one transaction."""
    work.old = _proven_oids(work)
    roles = {work.old[recipe.name]: recipe.target.role for recipe in work.recipes if recipe.name in work.old}

    def on_ended(oid: int, session: EndedSession) -> None:
        _note(work.ended[roles[oid]], session)

    with failing_as("the new databases cannot take their names"):
        if work.old:
            work.connection.execute("; ".join(f"ALTER DATABASE {quoted(name)} ALLOW_CONNECTIONS false" for name in work.old).encode())
            # Closed now: nobody comes in any more, but for a session that was just starting; that one appears late.
            if work.clearance.check(work.old):
                obstacles.quiet(work.connection, work.old.values(), on_ended=on_ended)
        statements = []
        for recipe in work.recipes:
            name, new = recipe.name, recipe.new
            wanted = work.build.wanted.get(recipe.target.role)
            if wanted is not None:
                statements += attributes.restoring(new, recipe.target.dsn.user, now=attributes.PLAIN, wanted=wanted)
            if name in work.old:
                statements.append(f"ALTER DATABASE {quoted(name)} RENAME TO {quoted(recipe.old)}")
            statements.append(f"ALTER DATABASE {quoted(new)} RENAME TO {quoted(name)}")
            statements.append(f"COMMENT ON DATABASE {quoted(name)} IS {literal(recipe.stamp.text())}")
        # Without BEGIN one string is one transaction that no error leaves open.
        obstacles.persistently(work.connection, list(work.old.values()), "; ".join(statements), on_ended=on_ended)


def _proven_oids(work: Work) -> dict[str, int]:
    """Return the oids of the databases to be replaced: those that the guard proved, or our own placeholders."""
    names = [recipe.name for recipe in work.recipes]
    found = {}
    for name, oid in work.connection.execute("SELECT datname::text, oid FROM pg_database WHERE datname = ANY(%s)", [names]):
        row = work.databases.get(name)
        if oid != (row.oid if row else work.build.placed.get(name)):
            raise ResetFailed(f"database {name!r} was replaced by another one meanwhile", next="Run `inv reset` again.")
        found[name] = oid
    return found


def _note(ended: list[EndedSession], session: EndedSession) -> None:
    if all(session.pid != known.pid for known in ended):
        ended.append(session)


def _drop_old(work: Work, recipe: Recipe, connection: Connection) -> None:
    """Drop the previous database, older templates, and what a role made where `createdb` lets it."""
    if recipe.name in work.old:
        obstacles.drop_closed(connection, recipe.old, work.old[recipe.name])
    for row in templates.superfluous(recipe, work.databases):
        obstacles.drop(connection, row)
    drop_made_by_role(work, recipe, connection)


def drop_made_by_role(work: Work, recipe: Recipe, connection: Connection) -> None:
    """Drop what the target's role made where `createdb` lets it; what a DSN of ours names is not among it."""
    if work.order.createdb and work.order.own_cluster:
        named = {dsn.name for dsn in work.order.proof.env.dsns.values()} | {protected.dsn.name for protected in work.order.proof.protected}
        for row in work.databases.values():
            if row.owner == recipe.target.dsn.user and row.name not in named and row.stamp is None:
                obstacles.drop(connection, row)


def _clean_up(work: Work) -> None:
    """After a failure: nothing half-made stays, and the previous databases are as they were, open again."""
    work.build.undisguise()
    work.databases.clear()
    work.databases.update(database.ask_databases(work.connection))
    work.clearance.check(name for recipe in work.recipes for name in (recipe.new, recipe.old))
    for recipe in work.recipes:
        work.clearance.sweep(recipe)
        row = work.databases.get(recipe.name)
        if row is None or row.allows_connections:
            continue
        if row.stamp is not None and not row.stamp.fingerprint:
            obstacles.drop(work.connection, row)
        else:
            work.clearance.open(row.name)


def _warn_of_sessions(work: Work) -> None:
    present: dict[str, list[EndedSession]] = {}
    for name, session in obstacles.sessions(work.connection, [recipe.name for recipe in work.recipes]):
        present.setdefault(name, []).append(session)
    for name, there in present.items():
        whose = ", ".join(sorted({f"{session.user} ({session.application or 'no application_name'})" for session in there}))
        work.say(f"warning: {len(there)} foreign session(s) are already on the new database {name!r}: {whose}")


def _result(work: Work, recipe: Recipe, ms: int) -> DatabaseReset:
    role = recipe.target.role
    return DatabaseReset(
        name=recipe.name,
        role=role,
        source="template" if work.build.warm[role] else "migrated",
        fingerprint=recipe.fingerprint,
        migrations=work.build.migrations[role],
        ended=tuple(work.ended[role]),
        ms=ms,
        phases=dict(work.phases),
    )


def complete(row: DatabaseRow) -> bool:
    """Say whether a stamped database is one that a reset finished."""
    fingerprint = row.stamp.fingerprint if row.stamp else ""
    return row.allows_connections and not row.invalid and fingerprint not in ("", ADOPTED) and not fingerprint.startswith(REPLACES)


def stamp(connection: Connection, target: SafeTarget, *, worktree: str, repository: str) -> None:
    """Mark an adopted database as this worktree's, incomplete until its first reset."""
    text = Stamp(target.role, repository, worktree, ADOPTED, time.time()).text()
    with failing_as(f"database {target.dsn.name!r} cannot be stamped"):
        connection.execute(f"COMMENT ON DATABASE {quoted(target.dsn.name)} IS {literal(text)}".encode())
