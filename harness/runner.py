"""Run packages one after another, each in a process of its own that is ended with everything it started."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness import conftests, junit, outcomes, packages
from harness.arguments import check_serial, chooses_tests, paths_within
from harness.children import Child, NotStarted, Starter, running, watchman
from harness.errors import Interrupted
from harness.interpreter import Interpreter, is_possible
from harness.outcomes import Ended, Event, Follower
from harness.packages import child_environment, own_variables
from harness.process import command_line, start
from harness.report import Reporter
from harness.results import PackageResult, any_test_ran
from harness.settings import Package, Settings, is_ci
from harness.worktree import prove_not_hidden

if TYPE_CHECKING:
    from harness.envfile import Env

__all__ = ["child_environment", "expected_seconds", "own_variables", "results_folder", "run_packages", "workplace"]

LAST = "last.json"
TICK = 0.2

Before = Callable[[Package], None]
After = Callable[[Package, PackageResult], PackageResult]


class Workplace(NamedTuple):
    """Where packages run: a private folder, the mark that all processes bear, and a warm interpreter per role."""

    mark: str
    folder: Path
    interpreters: Mapping[str, Interpreter]

    def renew(self) -> None:
        """Prepare for another run of the same packages, which shall share no interpreter with an earlier one."""
        for interpreter in self.interpreters.values():
            interpreter.renew()


class Run(NamedTuple):
    """What all packages of a run share."""

    settings: Settings
    env: Env
    shell: Mapping[str, str]
    arguments: tuple[str, ...]
    reporter: Reporter
    quiet: bool
    place: Workplace
    folder: Path
    before: Before | None
    after: After | None
    cut: list[PackageResult]
    """The package that a signal interrupted, with the tests that were over by then."""


@contextmanager
def workplace(
    settings: Settings,
    chosen: Sequence[Package],
    env: Env,
    *,
    shell: Mapping[str, str],
    say: Callable[[str], None],
    arguments: Sequence[str] = (),
) -> Iterator[Workplace]:
    """Prepare for `chosen`: their interpreters warm up while the caller resets. At the end no process of ours is left."""
    if any(not package.command for package in chosen):
        prove_not_hidden(settings.root)
    folder = Path(tempfile.mkdtemp(prefix="harness-run-"))
    mark = folder.name.removeprefix("harness-run-") + f".{os.getpid()}"
    interpreters: dict[str, Interpreter] = {}
    try:
        with watchman(mark, folder):
            try:
                for package in chosen if is_possible(fork=settings.run.fork) else ():
                    if not package.command and package.role not in interpreters:
                        seen = packages.run_environment(settings, package, env, shell, mark=mark, folder=folder)
                        interpreters[package.role] = Interpreter(seen, settings.root, arguments, say)
                yield Workplace(mark, folder, interpreters)
            finally:
                for interpreter in interpreters.values():
                    interpreter.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_packages(  # noqa: PLR0913  # one keyword per flag
    settings: Settings,
    chosen: Sequence[Package],
    env: Env,
    *,
    place: Workplace,
    shell: Mapping[str, str],
    reporter: Reporter,
    arguments: Sequence[str] = (),
    fail_fast: bool = False,
    quiet: bool = False,
    strict: bool = False,
    before: Before | None = None,
    after: After | None = None,
) -> list[PackageResult]:
    """Run `chosen` in order and return one result each; what fail-fast or a signal left out is `not-run`.

    `before` is called with each package before its process starts; `after` with each result while what the package left
    running still runs, and its answer counts. Raises UsageError for arguments that break a serial run, and Interrupted again
    after INT, TERM or HUP, when no process is left: `reporter.results` then has what there is.
    """
    check_serial(arguments)
    is_selection = chooses_tests(arguments, settings.root)
    _warn(settings, chosen, shell, reporter)
    strict = strict or settings.run.strict == "always" or (settings.run.strict == "ci" and is_ci(shell))
    results: list[PackageResult] = []
    folder = Path(tempfile.mkdtemp(dir=place.folder))
    run = Run(settings, env, shell, tuple(arguments), reporter, quiet, place, folder, before, after, [])
    try:
        for number, package in enumerate(chosen, 1):
            reporter.begin(package, number, len(chosen))
            results.append(_run_package(run, package, number, chosen))
            reporter.end(results[-1])
            if fail_fast and not _settled(settings, chosen, results, strict=strict, is_selection=is_selection)[-1].fine:
                break
    except Interrupted:
        for result in run.cut:
            results.append(result)
            reporter.end(result)
        raise
    finally:
        results += [outcomes.without_process(package, "not-run", "", time.time()) for package in chosen[len(results) :]]
        results = _settled(settings, chosen, results, strict=strict, is_selection=is_selection)
        reporter.results = results
    return results


def results_folder(settings: Settings) -> Path:
    """Return the folder of last.json; it stays in the worktree, wherever the cluster's data lies."""
    return settings.root / "test" / ".stack"


def expected_seconds(settings: Settings) -> dict[str, float]:
    """Return how long each package took in the last run; nothing where there is no readable result of one."""
    try:
        document = json.loads((results_folder(settings) / LAST).read_text(encoding="utf-8"))
        return {package["package"]: float(package["seconds"]) for package in document["packages"] if package["status"] != "not-run"}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _warn(settings: Settings, chosen: Sequence[Package], shell: Mapping[str, str], reporter: Reporter) -> None:
    if shell.get("PYTEST_ADDOPTS", "").strip():
        reporter.say("PYTEST_ADDOPTS is not used: a run's options stand in the project's pytest settings or after --")
    variable = settings.database("application").variable
    for path, line in conftests.overriding(settings.root, chosen):
        where = f"{path.relative_to(settings.root)}:{line}"
        reporter.say(f"warning: {where} loads a .env over the environment, and so may set {variable} and this run's other variables")
        reporter.doubt(f"{where} loads a .env over its environment")
    for folder in conftests.leftovers(settings.root, chosen):
        reporter.say(f"warning: {folder.relative_to(settings.root)}/ holds nothing but __pycache__ and can still be imported: remove it")


def _run_package(run: Run, package: Package, number: int, chosen: Sequence[Package]) -> PackageResult:
    root, started = run.settings.root, time.time()
    if not (root / package.path).exists():
        return outcomes.without_process(package, "missing", f"{package.path} is not there", started)
    if conftests.is_leftover(root / package.path):
        return outcomes.without_process(package, "missing", f"{package.path} holds nothing but __pycache__", started)
    is_elsewhere = bool(run.arguments) and any(paths_within(other, run.arguments, root) for other in chosen)
    if is_elsewhere and not paths_within(package, run.arguments, root):
        return outcomes.without_process(package, "empty", "nothing of it was selected", started)
    if run.before:
        run.before(package)
    return _run_process(run, package, number, chosen[number:])


def _prepare(run: Run, package: Package, number: int) -> packages.Prepared:
    is_coloured = run.quiet and run.reporter.is_terminal and not run.shell.get("NO_COLOR")
    folder = run.folder / str(number)
    return packages.prepare(run.settings, package, run.env, run.shell, run.arguments, run.place.mark, folder, is_coloured=is_coloured)


def _interpreter(run: Run, package: Package) -> Interpreter | None:
    return None if package.command else run.place.interpreters.get(package.role)


def _announce(run: Run, package: Package, number: int) -> None:
    """Let the package that comes next prepare itself; with arguments, only the package's own pytest can say what they import."""
    interpreter = _interpreter(run, package)
    if interpreter and not run.arguments and (run.settings.root / package.path).exists():
        prepared = _prepare(run, package, number)
        interpreter.announce(prepared.argv, env=prepared.env, output=prepared.output if run.quiet else None)


def _run_process(run: Run, package: Package, number: int, following: Sequence[Package]) -> PackageResult:
    root = run.settings.root
    cwd = root / package.path if package.command and (root / package.path).is_dir() else root
    folder, argv, env = prepared = _prepare(run, package, number)
    junit_file = cwd / package.junit if package.junit else None
    if junit_file and junit_file.is_dir():
        return outcomes.without_process(package, "error", f"its JUnit file {package.junit} is a folder", time.time())
    if junit_file:
        junit_file.unlink(missing_ok=True)
    interpreter = _interpreter(run, package)
    if interpreter:
        interpreter.warm_up(package.timeout)
    grace = run.settings.run.grace
    starter: Starter = interpreter.start if interpreter else start
    started, clock = time.time(), time.monotonic()
    try:
        with (
            prepared.output.open("wb") as captured,
            running(argv, env=env, cwd=cwd, grace=grace, output=captured if run.quiet else None, starter=starter) as child,
        ):
            for after in following[:1]:
                _announce(run, after, number + 1)
            in_time = _wait(run, package, child, folder / "outcomes", clock)
            seconds = time.monotonic() - clock
            if not in_time:
                child.end()
            left = tuple(command_line(found.pid) for found in child.left())
            result = _judge(run, package, Ended(started, seconds, child.returncode, not in_time, "", left), folder, junit_file)
            if run.after:
                result = run.after(package, result)
    except NotStarted as error:
        return outcomes.without_process(package, "error", str(error), started)
    except Interrupted as interrupt:
        ended = Ended(started, time.monotonic() - clock, None, trouble=f"interrupted by {interrupt}")
        run.cut.append(_judge(run, package, ended, folder, None))
        raise
    if run.quiet and result.status not in ("passed", "skipped", "empty"):
        run.reporter.show(prepared.output)
    return result


def _wait(run: Run, package: Package, child: Child, events: Path, clock: float) -> bool:
    """Wait for the child, with a sign of life where someone watches; False when its time is over."""
    deadline = clock + package.timeout if package.timeout else None
    seen = Follower(events)
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not (run.quiet and run.reporter.is_terminal):
            return child.wait(left)
        if child.wait(TICK if left is None else min(TICK, left)):
            return True
        if deadline is not None and time.monotonic() >= deadline:
            return False
        run.reporter.progress(seen.read())


def _judge(run: Run, package: Package, ended: Ended, folder: Path, junit_file: Path | None) -> PackageResult:
    variables = [database.variable for database in run.settings.databases if database.role in ("test", "e2e")]
    if package.command:
        tests, trouble = junit.read(junit_file, package.name) if junit_file else (None, "")
        return outcomes.judge_command(package, ended, tests, trouble=trouble, variables=variables)
    events = outcomes.read_events(folder / "outcomes")
    result = outcomes.judge_pytest(package, ended, events, root=run.settings.root, variables=variables)
    if result.status in ("crashed", "timeout") or ended.returncode is None:
        run.reporter.say("")  # it was cut off in the middle of a line
    _tell(run, package, events)
    return result


def _tell(run: Run, package: Package, events: Sequence[Event]) -> None:
    options = outcomes.neutralised(events)
    if options:
        run.reporter.say(f"{package.name}: {', '.join(options)} of its pytest settings had no effect: every test runs, one at a time")
    for name in outcomes.overridden(events):
        run.reporter.say(f"warning: {package.name} set {name} to another value than this run gave it")
        run.reporter.doubt(f"{package.name} changed {name}")


def _settled(
    settings: Settings, chosen: Sequence[Package], results: Sequence[PackageResult], *, strict: bool, is_selection: bool
) -> list[PackageResult]:
    """Return the results with their `fine`: of a selection, a package without a match is fine if another ran a test."""
    any_ran = any_test_ran(results)
    return [
        result._replace(
            fine=outcomes.is_fine(
                result,
                package,
                own_variable=settings.database(package.role).variable,
                strict=strict,
                is_selection=is_selection,
                any_test_ran=any_ran,
            )
        )
        for package, result in zip(chosen, results, strict=False)
    ]
