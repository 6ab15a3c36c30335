"""The tasks that need a server: locks, guard, reset and runner composed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from harness import cluster, database, envfile, guard, lock, worktree
from harness.crew import Crew, Opening
from harness.errors import HarnessError, ResetFailed, UsageError
from harness.guard import Proof
from harness.settings import ENV_FILE, Settings
from harness.targets import Dsn, SafeTarget

if TYPE_CHECKING:
    from harness import reset, streams
    from harness.database import Connection
    from harness.envfile import Env
    from harness.rehearsal import Rehearsal
    from harness.results import DatabaseReset
    from harness.spare import Spare

Say = Callable[[str], None]


class Opened(NamedTuple):
    """A run's hold on its databases: the session that holds the locks, who resets, what was proven, and the streams."""

    settings: Settings
    env: Env
    shell: Mapping[str, str]
    connection: Connection
    crew: Crew
    proof: Proof
    targets: tuple[SafeTarget, ...]
    plan: streams.Plan
    own_cluster: bool


def roles_named(settings: Settings, shell: Mapping[str, str], name: str, roles: Sequence[str]) -> tuple[str, ...]:
    """Return the one of `roles` whose DSN names the database `name`; UsageError when none does."""
    env = envfile.load(settings, shell)
    dsns = [env.dsn(role) for role in roles]
    found = tuple(role for role, dsn in zip(roles, dsns, strict=True) if dsn.name == name)
    if not found:
        raise UsageError(
            f"{name!r} is no test or e2e database of {ENV_FILE}", next=f"Give --adopt {' or '.join(dsn.name for dsn in dsns)}."
        )
    return found


@contextmanager
def opened(
    settings: Settings, shell: Mapping[str, str], *, roles: Sequence[str], wait: float, say: Say, adopt: str = ""
) -> Iterator[Opened]:
    """Prove everything and hold the locks of the databases of `roles` for as long as the block lasts.

    Starts this worktree's own cluster where it is stopped. Raises UsageError, Refusal, ResetFailed or StackFailure;
    nothing was touched then.
    """
    env = envfile.load(settings, shell)
    for warning in env.warnings:
        say(f"warning: {warning}")
    maintenance = env.dsn("maintenance")
    ours = cluster.ensure_running(settings, maintenance)
    if ours and ours.just_started:
        say(f"started this worktree's cluster on port {ours.port}")
    guard.prove_apart(env)
    with ExitStack() as stack:
        stack.enter_context(database.failing_as("the run was cut short", next="Run the command again; a reset clears up what is left."))
        names = [env.dsn(role).name for role in roles]
        holder = stack.enter_context(closing(Opening(maintenance, lock.purpose(settings.root))))
        # Commands run one after another: a signal has to reach the one that is at work.
        side_by_side = not any(stream.command for stream in settings.streams)
        crew = stack.enter_context(closing(Crew(names, maintenance if side_by_side else None)))
        crew.call()
        # Imported and read while the server makes our sessions.
        from harness import reset, streams  # noqa: F401  # the reset is what follows

        plan = streams.plan(settings)
        for notice in plan.notices:
            say(notice)
        connection = holder.session()
        server = database.ask_server(connection)
        guard.prove_server(server, maintenance, expected=(ours.data, ours.system_identifier) if ours else None)
        lock.acquire(connection, names, worktree=settings.root, wait=wait, say=say)
        proof = guard.gather(settings, env, server, database.ask_databases(connection), say)
        targets = tuple(guard.prove(proof, role, adopt=adopt) for role in roles)
        guard.prove_rights(proof, targets, connection)
        yield Opened(settings, env, shell, connection, crew, proof, targets, plan, ours is not None)


def renewed(run: Opened) -> Opened:
    """Return `run` with its databases asked and proven again, as another reset in the same run needs them."""
    proof = run.proof._replace(databases=database.ask_databases(run.connection))
    return run._replace(proof=proof, targets=tuple(guard.prove(proof, each.role) for each in run.targets))


def make_pristine(run: Opened, *, fresh: bool, say: Say, salt: str = "") -> list[DatabaseReset]:
    """Reset the databases that `run` holds, and say what was in the way; ResetFailed when they changed since they were proven."""
    from harness import reset

    return reset.reset(run.connection, _order(run, run.targets, fresh=fresh, salt=salt), run.crew, say=say)


def rehearse(run: Opened, *, say: Say) -> Rehearsal:
    """Apply the streams from zero, twice, beside the test database that `run` holds."""
    from harness import rehearsal

    return rehearsal.rehearse(run.connection, _order(run, run.targets[:1], fresh=True, salt=""), say)


def _order(run: Opened, targets: Sequence[SafeTarget], *, fresh: bool, salt: str) -> reset.Order:
    from harness import reset

    return reset.Order(
        proof=run.proof,
        targets=tuple(targets),
        plan=run.plan,
        shell=run.shell,
        repository=worktree.repository(run.settings.root),
        own_cluster=run.own_cluster,
        fresh=fresh,
        createdb=run.settings.stack.createdb,
        salt=salt,
    )


@contextmanager
def spare(run: Opened, role: str, *, salt: str, say: Say) -> Iterator[tuple[Connection, Spare]]:
    """Open a session for the next databases of `role`; whatever stands beside the present one at the end is dropped."""
    from harness.spare import Spare

    target = next(target for target in run.targets if target.role == role)
    with database.connect(run.env.dsn("maintenance"), purpose="reset") as connection:
        # The next reset waits for what this session is at, should we be killed.
        connection.execute(f"SELECT pg_try_advisory_lock({lock.worker_key(target.dsn.name)})".encode())
        found = Spare(connection, _order(run, [target], fresh=False, salt=salt), say)
        try:
            yield connection, found
        except BaseException:
            with suppress(database.Error, HarnessError):
                found.close()
            raise
        found.close()


def adopt(run: Opened, name: str, *, say: Say) -> Opened:
    """List what is in the database `name`, stamp it as ours, and return `run` with that proven."""
    from harness import obstacles, reset

    target = next(target for target in run.targets if target.dsn.name == name)
    if target.oid is None or target.stamp is not None:
        return run
    with database.connect(run.env.dsn("maintenance").at(name), purpose="adopt") as inside:
        counts = obstacles.row_counts(inside)
    say(f"adopting database {name!r} with {len(counts)} table(s), which the reset replaces:")
    for table, rows in counts:
        say(f"  {table}: {'unknown number of' if rows is None else rows} row(s)")
    reset.stamp(run.connection, target, worktree=str(run.settings.root), repository=worktree.repository(run.settings.root))
    return renewed(run)


def prove_complete(run: Opened) -> None:
    """Raise ResetFailed unless every database that `run` holds is one that a reset finished."""
    from harness import reset

    for target in run.targets:
        row = run.proof.databases.get(target.dsn.name)
        if row is None or not reset.complete(row):
            raise ResetFailed(f"database {target.dsn.name!r} is absent or half-made", next="Run without --no-reset, or `inv reset` first.")


def own_dsn(settings: Settings, shell: Mapping[str, str], role: str, *, say: Say) -> Dsn:
    """Return the DSN of `role`, proven to open neither the application's database nor the server's own; starts our own cluster."""
    env = envfile.load(settings, shell)
    maintenance = env.dsn("maintenance")
    ours = cluster.ensure_running(settings, maintenance)
    guard.prove_apart(env)
    with database.failing_as("the server cannot be asked"), database.connect(maintenance, purpose="psql") as connection:
        server = database.ask_server(connection)
        guard.prove_server(server, maintenance, expected=(ours.data, ours.system_identifier) if ours else None)
        guard.prove_identity(guard.gather(settings, env, server, database.ask_databases(connection), say), role)
    return env.dsn(role)


def still_holds(run: Opened) -> bool:
    """Say whether the session that holds the locks has lived through the run."""
    try:
        run.connection.execute("SELECT 1")
    except database.Error:
        return False
    return True
