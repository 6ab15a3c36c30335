"""`inv test`: reset the databases of the chosen packages, run them one at a time, keep and report what happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

from harness import junit, page, report, runner, session, streams
from harness.arguments import check_paths, check_serial
from harness.errors import Interrupted, Outcome, ResetFailed, UsageError
from harness.report import Reporter
from harness.results import DatabaseReset, PackageResult, encode, exit_code, totals
from harness.runner import Workplace
from harness.session import Opened
from harness.settings import FILE, Package, Settings, is_ci
from harness.upkeep import Upkeep

_LOST = "the session that held the databases' locks was lost"


class Request(NamedTuple):
    """What `inv test` is asked for; `wait` in seconds, `shard` one machine's number, from 1, and how many there are."""

    packages: tuple[Package, ...]
    arguments: tuple[str, ...] = ()
    fail_fast: bool = False
    isolate: bool = False
    quiet: bool = False
    strict: bool = False
    reset: bool = True
    wait: float = 0.0
    slowest: int = 0
    junit: str = ""
    html: str = ""
    shard: tuple[int, int] | None = None


def select(settings: Settings, *, names: Sequence[str], e2e: bool) -> tuple[Package, ...]:
    """Return the packages to run in harness.toml's order: those named (by name or path), else the test packages and with `e2e` all."""
    if not settings.packages:
        raise UsageError(f"{FILE} lists no packages", next='Add `test = ["tests/FOLDER"]` to its [packages].')
    if not names:
        chosen = tuple(package for package in settings.packages if e2e or package.role == "test")
        if not chosen:
            raise UsageError(f"{FILE} lists no test packages", next="Run `inv test --e2e`, or add one to its [packages].")
        return chosen
    found = set()
    for name in names:
        path = Path(name).as_posix()
        matching = [package.name for package in settings.packages if name == package.name or path == package.path]
        if not matching:
            raise UsageError(f"{FILE} has no package {name!r}", next=f"It has: {', '.join(package.name for package in settings.packages)}.")
        found.update(matching)
    return tuple(package for package in settings.packages if package.name in found)


def test(settings: Settings, shell: Mapping[str, str], request: Request, *, outcome: Outcome) -> None:
    """Make the databases of the chosen packages pristine, run the packages, and leave summary, reports and results.

    The results stay in last.json, also those of an interrupted run. Raises what `session.opened` and `run_packages` raise.
    """
    check_serial(request.arguments)
    roles = [role for role in settings.test_roles if any(package.role == role for package in request.packages)]
    check_paths([package for package in settings.packages if package.role in roles], request.arguments, settings.root)
    reporter = Reporter(shell=shell, expected=runner.expected_seconds(settings), quiet=request.quiet)
    if request.shard and not request.packages:
        reporter.say(f"shard {request.shard[0]}/{request.shard[1]} has no packages: there are fewer packages than machines")
    with (
        session.opened(settings, shell, roles=roles, wait=request.wait, say=reporter.say) as opened,
        runner.workplace(settings, request.packages, opened.env, shell=shell, say=reporter.say, arguments=request.arguments) as place,
    ):
        # In CI, and for commands whose inputs are unknown, no template is used: with this each run has its own.
        salt = token_hex(8) if request.isolate and (is_ci(shell) or streams.fingerprint(opened.plan, []) is None) else ""
        databases = _prepare(opened, request, reporter, salt)
        try:
            run_once(opened, place, request, reporter, salt=salt)
            is_held = session.still_holds(opened)
            if not is_held:
                reporter.doubt(_LOST)
        except Interrupted:
            _report(shell, request, reporter, databases)
            raise
        finally:
            _leave(settings, request, reporter, databases, outcome)
    _report(shell, request, reporter, databases)
    outcome.exit = exit_code(reporter.results)
    if not is_held and not outcome.exit:
        raise ResetFailed(_LOST, next="Run it again: somebody else may have used the databases meanwhile.")


def run_once(opened: Opened, place: Workplace, request: Request, reporter: Reporter, *, salt: str = "") -> list[PackageResult]:
    """Run the packages on the databases as they are, and look at what each leaves behind; raises what `run_packages` raises."""
    upkeep = Upkeep(opened, reporter)
    isolation = upkeep.isolating(opened, request.packages, salt=salt) if request.isolate else nullcontext()
    with isolation:
        return runner.run_packages(
            opened.settings,
            request.packages,
            opened.env,
            place=place,
            shell=opened.shell,
            reporter=reporter,
            arguments=request.arguments,
            fail_fast=request.fail_fast,
            quiet=request.quiet,
            strict=request.strict,
            before=upkeep.before,
            after=upkeep.after,
        )


def _prepare(opened: Opened, request: Request, reporter: Reporter, salt: str) -> list[DatabaseReset]:
    if not request.reset:
        session.prove_complete(opened)
        return []
    databases = session.make_pristine(opened, fresh=is_ci(opened.shell) and not salt, say=reporter.say, salt=salt)
    for line in report.reset_lines(databases):
        reporter.say(line)
    return databases


def _leave(settings: Settings, request: Request, reporter: Reporter, databases: list[DatabaseReset], outcome: Outcome) -> None:
    """Hand the results to the boundary, which writes them as the last run's and where --json says."""
    folder = runner.results_folder(settings)
    with suppress(OSError):  # who writes the document tells what is wrong there
        folder.mkdir(parents=True, exist_ok=True)
    outcome.copy = str(folder / runner.LAST)
    outcome.document = document(request, reporter, databases)


def document(request: Request, reporter: Reporter, databases: list[DatabaseReset]) -> dict[str, object]:
    """Return the test document's own part."""
    return {
        "databases": encode(databases),
        "pristine": request.reset,
        "shard": {"index": request.shard[0], "count": request.shard[1]} if request.shard else None,
        "packages": encode(reporter.results),
        "totals": totals(reporter.results),
    }


def _report(shell: Mapping[str, str], request: Request, reporter: Reporter, databases: list[DatabaseReset]) -> None:
    results, pristine, doubts = reporter.results, request.reset, reporter.doubts
    for line in report.summary_lines(results, pristine=pristine, doubts=doubts, slowest=request.slowest):
        reporter.say(line)
    if request.junit:
        junit.write(Path(request.junit), results)
    if request.html:
        page.write(Path(request.html), results, pristine=pristine, doubts=doubts, databases=databases)
    if shell.get("GITHUB_STEP_SUMMARY"):
        report.append_step_summary(Path(shell["GITHUB_STEP_SUMMARY"]), results, pristine=pristine, doubts=doubts)
