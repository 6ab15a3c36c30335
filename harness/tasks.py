"""The tasks: flags in, one call, exit code out. The same collection is the console command `harness`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from invoke.context import Context
from invoke.tasks import Task, task

from harness.errors import UsageError, boundary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.settings import Settings

JSON_HELP = "Write the JSON document to this file; - for stdout, with everything else on stderr."
WAIT_HELP = "Seconds to wait for another run on the same databases (600)."
NO_WAIT_HELP = "Give up at once when another run is on."


def say(line: str) -> None:
    """Print one line of ours."""
    print(line, flush=True)


def _begin() -> tuple[Settings, Mapping[str, str]]:
    """Return this worktree's settings and the shell's environment, from which libpq will fill in nothing any more."""
    from harness import settings, worktree

    root = settings.find_root()
    worktree.prove_own_tasks(root)
    worktree.prove_own_code(root)
    shell = settings.environment()
    settings.forget_libpq_environment()
    return settings.load(root), shell


def _seconds(wait: str, *, no_wait: bool) -> float:
    from harness.lock import DEFAULT_WAIT

    if no_wait:
        return 0.0
    try:
        seconds = float(wait) if wait else DEFAULT_WAIT
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"--wait is {wait!r}", next="Give seconds, 0 or more.")
    return seconds


def _roles(database: str, settings: Settings) -> tuple[str, ...]:
    if not database:
        return settings.test_roles
    if database not in settings.test_roles:
        raise UsageError(f"--database is {database!r}", next=f"It takes {' or '.join(settings.test_roles)}.")
    return (database,)


def arguments_after_dashes(argv: Sequence[str]) -> list[str]:
    """Return what follows the first `--`, argument by argument; Invoke's own remainder has lost the quoting."""
    return list(argv[argv.index("--") + 1 :]) if "--" in argv else []


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
        settings, shell = _begin()
        from harness import report, session
        from harness.results import encode
        from harness.settings import is_ci

        roles, seconds = _roles(database, settings), _seconds(wait, no_wait=no_wait)
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
    slowest: int = 0,
    junit: str = "",
    html: str = "",
    json: str = "",
    wait: str = "",
    no_wait: bool = False,
) -> None:
    """Reset the databases of the packages to run, then run the packages one at a time."""
    with boundary("test", json_to=json) as outcome:
        settings, shell = _begin()
        from harness import run

        request = run.Request(
            packages=run.select(settings, names=tuple(package), e2e=e2e),
            arguments=tuple(arguments_after_dashes(sys.argv)),
            fail_fast=fail_fast,
            quiet=quiet,
            strict=strict,
            reset=reset,
            wait=_seconds(wait, no_wait=no_wait),
            slowest=slowest,
            junit=junit,
            html=html,
        )
        run.test(settings, shell, request, outcome=outcome)


@task(auto_shortflags=False, help={"database": "test (the default) or e2e."})
def psql(_context: Context, database: str = "test") -> None:
    """Open psql on a test database."""
    with boundary("psql"):
        settings, shell = _begin()
        from harness import adoption, process, servers, session

        (role,) = _roles(database, settings)
        _, dsn = session.own_dsn(settings, shell, role)
        process.replace([servers.client("psql", shell), *arguments_after_dashes(sys.argv)], env=adoption.psql_environment(dsn, shell))


@task(auto_shortflags=False, help={"database": "test (the default) or e2e."})
def env(_context: Context, database: str = "test") -> None:
    """Print exports of a class's own variable: eval "$(inv env)"."""
    with boundary("env"):
        settings, shell = _begin()
        from harness import adoption, envfile, runner

        (role,) = _roles(database, settings)
        found = envfile.load(settings, shell)
        say(adoption.exports(runner.own_variables(settings, role, found)))


@task(auto_shortflags=False, help={"prefix": "What each alias begins with (h)."})
def aliases(_context: Context, prefix: str = "") -> None:
    """Print shell aliases: eval "$(inv aliases)"."""
    with boundary("aliases"):
        from harness import adoption

        say(adoption.aliases(prefix or adoption.DEFAULT_PREFIX))


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
        settings, shell = _begin()
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
    with boundary("stack-down", json_to=json):
        settings, _ = _begin()
        from harness import cluster

        say("this worktree's cluster is stopped" if cluster.down(settings) else "this worktree's cluster did not run")


def _exported() -> list[Task[Any]]:
    return [value for value in globals().values() if isinstance(value, Task)]


# Without `ns`, `say` and the rest: an adopting repository's own names stay its own.
__all__ = [found.__name__ for found in _exported()]  # a list of names, made from the tasks themselves


def main() -> None:
    """Run the console command: the same tasks, and exit code 2 for what Invoke's parser rejects."""
    from importlib.metadata import version

    from invoke.collection import Collection
    from invoke.exceptions import Exit, ParseError
    from invoke.program import Program

    program = Program(namespace=Collection(*_exported()), name="harness", binary="harness", version=version("pgharness"))
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
