"""The tasks: flags in, one call, exit code out. The same collection is the console command `harness`."""

from __future__ import annotations

import gc
import sys

from invoke.context import Context
from invoke.tasks import task

from harness.adoption_tasks import init
from harness.errors import UsageError, boundary
from harness.frontend import (
    DATABASE_HELP,
    JSON_HELP,
    NO_WAIT_HELP,
    WAIT_HELP,
    arguments_after_dashes,
    begin,
    chosen_roles,
    say,
    wait_seconds,
)
from harness.stack_tasks import doctor, stack_down, stack_gc, stack_list, stack_up, status
from harness.verdict_tasks import bisect, report_merge, verify

# What an `inv` has imported stays to its end: no collection need look at it again, and the last one costs more than all of our imports.
gc.freeze()


@task(
    auto_shortflags=False,
    help={
        "database": "Reset one database only: test or e2e.",
        "fresh": "Migrate from zero; neither use nor keep a template.",
        "adopt": "Take over this existing, unstamped database: list what is in it, then reset it.",
        "wait": WAIT_HELP,
        "no-wait": NO_WAIT_HELP,
        "json": JSON_HELP,
    },
)
def reset(
    _context: Context, database: str = "", fresh: bool = False, adopt: str = "", wait: str = "", no_wait: bool = False, json: str = ""
) -> None:
    """Drop, recreate and migrate the test databases."""
    with boundary("reset", json_to=json) as outcome:
        settings, shell = begin()
        from harness import report, session
        from harness.results import encode
        from harness.settings import is_ci

        roles, seconds = chosen_roles(database, settings), wait_seconds(wait, no_wait=no_wait)
        if adopt:
            roles = session.roles_named(settings, shell, adopt, roles)
        with session.opened(settings, shell, roles=roles, wait=seconds, say=say, adopt=adopt) as held:
            run = session.adopt(held, adopt, say=say) if adopt else held
            databases = session.make_pristine(run, fresh=fresh or is_ci(shell), say=say)
        outcome.document = {"databases": encode(databases)}
        for line in report.reset_lines(databases):
            say(line)


@task(
    iterable=["package"],
    auto_shortflags=False,
    help={
        "e2e": "Run the e2e packages too, on their own database, after the test packages.",
        "package": "Run this package only, by its name or path; repeatable.",
        "fail-fast": "Stop after the first package that is not fine.",
        "quiet": "Show a package's output only when it is not fine.",
        "strict": "A skip for want of the package's own variable fails the run, as it does in CI.",
        "reset": "--no-reset runs on the databases as they are; the summary then says not pristine.",
        "isolate": "Give every package pristine databases, made while the one before runs.",
        "shard": "Run one machine's part of the packages: I/N, I from 1.",
        "durations": "Balance the shards by the times in this results file, the same one on each machine.",
        "slowest": "List this many of the slowest tests.",
        "junit": "Write one JUnit file of all packages.",
        "html": "Write one self-contained HTML page.",
        "json": JSON_HELP,
        "wait": WAIT_HELP,
        "no-wait": NO_WAIT_HELP,
    },
)
def test(
    _context: Context,
    package: list[str],
    e2e: bool = False,
    fail_fast: bool = False,
    quiet: bool = False,
    strict: bool = False,
    reset: bool = True,
    isolate: bool = False,
    shard: str = "",
    durations: str = "",
    slowest: int = 0,
    junit: str = "",
    html: str = "",
    json: str = "",
    wait: str = "",
    no_wait: bool = False,
) -> None:
    """Reset the databases of the packages to run, then run the packages one at a time."""
    with boundary("test", json_to=json) as outcome:
        settings, shell = begin()
        from harness import run, shards

        if isolate and not reset:
            raise UsageError("--isolate gives every package pristine databases, and --no-reset keeps them", next="Give one of the two.")
        if durations and not shard:
            raise UsageError("--durations balances shards, and there is no --shard", next="Add --shard I/N; --slowest N lists slow tests.")
        packages = run.select(settings, names=tuple(package), e2e=e2e)
        share = shards.parse(shard) if shard else None
        request = run.Request(
            packages=shards.choose(packages, share, durations) if share else packages,
            shard=share,
            arguments=tuple(arguments_after_dashes(sys.argv)),
            fail_fast=fail_fast,
            isolate=isolate,
            quiet=quiet,
            strict=strict,
            reset=reset,
            wait=wait_seconds(wait, no_wait=no_wait),
            slowest=slowest,
            junit=junit,
            html=html,
        )
        run.test(settings, shell, request, outcome=outcome)


@task(auto_shortflags=False, help={"json": JSON_HELP, "wait": WAIT_HELP, "no-wait": NO_WAIT_HELP})
def migrations_check(_context: Context, json: str = "", wait: str = "", no_wait: bool = False) -> None:
    """Apply the streams from zero, twice, in a throw-away database, and compare the schemas."""
    with boundary("migrations-check", json_to=json) as outcome:
        settings, shell = begin()
        from harness import session
        from harness.errors import ResetFailed
        from harness.results import encode

        with session.opened(settings, shell, roles=("test",), wait=wait_seconds(wait, no_wait=no_wait), say=say) as run:
            found = session.rehearse(run, say=say)
        outcome.document = encode(found)
        for line in found.differences:
            say(f"  {line}")
        if found.differences:
            raise ResetFailed(
                f"{len(found.differences)} object(s) differ between two times from zero", next="Make the streams give the same each time."
            )
        say(f"{found.migrations} migration(s) from zero to head, twice the same schema: {found.objects} objects, nothing pending")


@task(auto_shortflags=False, help={"database": DATABASE_HELP})
def psql(_context: Context, database: str = "test") -> None:
    """Open psql on a test database."""
    with boundary("psql"):
        settings, shell = begin()
        from harness import adoption, process, servers, session

        (role,) = chosen_roles(database, settings)
        dsn = session.own_dsn(settings, shell, role, say=say)
        process.replace([servers.client("psql", shell), *arguments_after_dashes(sys.argv)], env=adoption.psql_environment(dsn, shell))


@task(auto_shortflags=False, help={"database": DATABASE_HELP})
def env(_context: Context, database: str = "test") -> None:
    """Print exports of a class's own variable: eval "$(inv env)"."""
    with boundary("env"):
        settings, shell = begin()
        from harness import adoption, envfile, runner

        (role,) = chosen_roles(database, settings)
        found = envfile.load(settings, shell)
        say(adoption.exports(runner.own_variables(settings, role, found)))


@task(auto_shortflags=False, help={"prefix": "What each alias begins with (h)."})
def aliases(_context: Context, prefix: str = "") -> None:
    """Print shell aliases: eval "$(inv aliases)"."""
    with boundary("aliases"):
        from harness import adoption

        say(adoption.aliases(prefix or adoption.DEFAULT_PREFIX))


# Without `ns`, `say` and the rest: an adopting repository's own names stay its own.
__all__ = [
    "aliases",
    "bisect",
    "doctor",
    "env",
    "init",
    "migrations_check",
    "psql",
    "report_merge",
    "reset",
    "stack_down",
    "stack_gc",
    "stack_list",
    "stack_up",
    "status",
    "test",
    "verify",
]


def main() -> None:
    """Run the console command: the same tasks, and exit code 2 for what Invoke's parser rejects."""
    from importlib.metadata import version

    from invoke.collection import Collection
    from invoke.exceptions import Exit, ParseError
    from invoke.program import Program

    program = Program(
        namespace=Collection(*(globals()[name] for name in __all__)), name="harness", binary="harness", version=version("pgharness")
    )
    try:
        program.create_config()
        program.parse_core(None)
        program.parse_collection()
        program.parse_tasks()
        program.parse_cleanup()
        program.update_config()
    except ParseError as error:
        print(error, file=sys.stderr)
        raise SystemExit(UsageError.code) from None
    except Exit as request:
        raise SystemExit(request.code) from None
    program.execute()
