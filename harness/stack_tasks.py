"""The tasks about clusters: this worktree's, every worktree's, and what is wrong with them."""

from __future__ import annotations

from invoke.context import Context
from invoke.tasks import task

from harness.errors import StackFailure, UsageError, boundary
from harness.frontend import JSON_HELP, begin, say


@task(
    auto_shortflags=False,
    help={
        "server": "Where the server's programs come from: auto, system, embedded or external ([stack] server).",
        "force": "Rewrite lines of test/.env that were changed by hand.",
        "json": JSON_HELP,
    },
)
def stack_up(_context: Context, server: str = "", force: bool = False, json: str = "") -> None:
    """Make or start this worktree's cluster and write test/.env."""
    with boundary("stack-up", json_to=json) as outcome:
        settings, shell = begin()
        from harness import cluster
        from harness.results import encode
        from harness.settings import SERVERS

        if server and server not in SERVERS:
            raise UsageError(f"--server is {server!r}", next=f"It takes {', '.join(SERVERS)}.")
        ours = cluster.up(settings, server=server, force=force, shell=shell, say=say)
        outcome.document = {"cluster": encode(ours)}
        if ours is None:
            say("test/.env is written for the external server")
        else:
            say(f"this worktree's cluster is {'started' if ours.just_started else 'up'} on port {ours.port} (PostgreSQL {ours.major})")


@task(auto_shortflags=False, help={"json": JSON_HELP})
def stack_down(_context: Context, json: str = "") -> None:
    """Stop this worktree's cluster; its data stays."""
    with boundary("stack-down", json_to=json) as outcome:
        settings, _ = begin()
        from harness import cluster

        stopped = cluster.down(settings)
        outcome.document = {"stopped": stopped}
        say("this worktree's cluster is stopped" if stopped else "this worktree's cluster did not run")


@task(auto_shortflags=False, help={"json": JSON_HELP})
def status(_context: Context, json: str = "") -> None:
    """Show what is up and whose it is."""
    with boundary("status", json_to=json) as outcome:
        settings, shell = begin()
        from harness import doctor as state
        from harness.results import encode

        found = state.status(settings, shell)
        outcome.document = encode(found)
        for line in state.status_lines(found):
            say(line)
        if not found.is_up:
            outcome.exit = StackFailure.code


@task(auto_shortflags=False, help={"json": JSON_HELP})
def doctor(_context: Context, json: str = "") -> None:
    """Say what is wrong and how to mend it."""
    with boundary("doctor", json_to=json) as outcome:
        from harness import doctor as state
        from harness import settings, worktree
        from harness.results import encode

        root = settings.find_root()
        worktree.prove_own_tasks(root)
        shell = settings.environment()
        settings.forget_libpq_environment()
        checks = state.examine(root, shell)
        outcome.document = {"checks": encode(checks)}
        for check in checks:
            say(f"{'fine' if check.ok else 'WRONG'}  {check.check}: {check.finding}{'' if check.ok else f'. {check.next}'}")
        if not all(check.ok for check in checks):
            outcome.exit = StackFailure.code


@task(auto_shortflags=False, help={"json": JSON_HELP})
def stack_list(_context: Context, json: str = "") -> None:
    """List every worktree's cluster: path, port, state, size, age."""
    with boundary("stack-list", json_to=json) as outcome:
        from harness import holdings
        from harness.results import encode

        worktrees = holdings.listed()
        outcome.document = {"worktrees": encode(worktrees)}
        for held in worktrees:
            say(f"{held.path}: port {held.port}, {held.state}, {held.bytes // 1_000_000} MB, {held.age / 86400:.1f} days")
        if not worktrees:
            say("no worktree has a cluster")


@task(
    auto_shortflags=False,
    help={
        "dry-run": "Only say what would be done.",
        "yes": "Delete the data of vanished worktrees too.",
        "json": JSON_HELP,
    },
)
def stack_gc(_context: Context, dry_run: bool = False, yes: bool = False, json: str = "") -> None:
    """Stop the clusters of vanished worktrees and free their ports."""
    with boundary("stack-gc", json_to=json) as outcome:
        settings, shell = begin()
        from harness import holdings
        from harness.results import encode

        done = holdings.collect(settings.root, shell, dry_run=dry_run, remove_data=yes)
        outcome.document = {"collected": encode(done)}
        for one in done:
            say(one.line(dry_run=dry_run))
        if not done:
            say("no worktree has vanished")
