"""The tasks about a verdict: is it the same again, who makes a package fail, and one out of several machines' results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from invoke.context import Context
from invoke.parser.argument import Argument
from invoke.tasks import Task, task

from harness.errors import UsageError, boundary
from harness.frontend import JSON_HELP, NO_WAIT_HELP, WAIT_HELP, arguments_after_dashes, begin, say, wait_seconds

SEED_HELP = "an order that depends on this whole number only."


def whole_number(flag: str, text: str, *, least: int) -> int:
    """Return the number that a flag was given; UsageError for anything else."""
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise UsageError(f"{flag} is {text!r}", next=f"Give a whole number, {least} or more.")
    return number


@task(
    auto_shortflags=False,
    help={
        "e2e": "Run the e2e packages too.",
        "shuffle": f"Run the packages of each class the second time in {SEED_HELP}",
        "quiet": "Show a package's output only when it is not fine.",
        "json": JSON_HELP,
        "wait": WAIT_HELP,
        "no-wait": NO_WAIT_HELP,
    },
)
def verify(
    _context: Context, e2e: bool = False, shuffle: str = "", quiet: bool = False, json: str = "", wait: str = "", no_wait: bool = False
) -> None:
    """Run the suite twice, each time on pristine databases, and compare the two test by test."""
    with boundary("verify", json_to=json) as outcome:
        settings, shell = begin()
        from harness import investigate, run

        request = run.Request(
            packages=run.select(settings, names=(), e2e=e2e),
            arguments=tuple(arguments_after_dashes(sys.argv)),
            quiet=quiet,
            wait=wait_seconds(wait, no_wait=no_wait),
        )
        seed = whole_number("--shuffle", shuffle, least=0) if shuffle else None
        investigate.verify(settings, shell, request, seed=seed, outcome=outcome)


@task(
    auto_shortflags=False,
    help={
        "package": "The package that fails after others, by its name or path.",
        "test": "The test that fails after other packages, by its id: PACKAGE::NODEID.",
        "repeat": "Run each question this often (1): tells a package that flickers.",
        "shuffle": f"Take the packages of each class in {SEED_HELP}",
        "json": JSON_HELP,
        "wait": WAIT_HELP,
        "no-wait": NO_WAIT_HELP,
    },
)
def bisect(
    _context: Context,
    package: str = "",
    test: str = "",
    repeat: str = "1",
    shuffle: str = "",
    json: str = "",
    wait: str = "",
    no_wait: bool = False,
) -> None:
    """Find the earlier package whose work makes a package, or a test, fail."""
    with boundary("bisect", json_to=json) as outcome:
        settings, shell = begin()
        from harness import investigate, run

        if bool(package) == bool(test):
            raise UsageError("bisect needs either --package or --test", next="Name what fails after other packages.")
        packages = run.select(settings, names=(), e2e=True)
        if shuffle:
            packages = investigate.shuffled(packages, whole_number("--shuffle", shuffle, least=0))
        victim = test or run.select(settings, names=(package,), e2e=True)[0].name
        question = investigate.Question(
            victim=victim,
            packages=packages,
            repeat=whole_number("--repeat", repeat, least=1),
            wait=wait_seconds(wait, no_wait=no_wait),
            arguments=tuple(arguments_after_dashes(sys.argv)),
        )
        investigate.bisect(settings, shell, question, outcome=outcome, say=say)


class TaskOfFiles(Task[Any]):
    """A task that takes any number of files: for Invoke each is an argument of its own, which it wants to know beforehand."""

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        """Return the flags, and an argument for each file on the command line."""
        files = [Argument(name=f"file-{number}", positional=True) for number in range(_count_files(sys.argv, self.name))]
        return [*super().get_arguments(ignore_unknown_help), *files]

    def __call__(self, *arguments: Any, **flags: Any) -> Any:
        """Hand the files on as a list."""
        files = [flags.pop(name) for name in list(flags) if name.startswith("file-")]
        return super().__call__(*arguments, **{**flags, "files": files})


def _count_files(argv: Sequence[str], name: str) -> int:
    """Count what is neither a flag nor a flag's value after the task's name; each flag of the task takes a value."""
    rest = list(argv[argv.index(name) + 1 :]) if name in argv else []
    flags = [token.startswith("-") for token in rest]
    values = [position > 0 and flags[position - 1] and "=" not in rest[position - 1] for position in range(len(rest))]
    return sum(not flag and not value for flag, value in zip(flags, values, strict=True))


@task(
    klass=TaskOfFiles,
    name="report-merge",
    auto_shortflags=False,
    help={"files": "The machines' results files (.json) and JUnit files (.xml).", "junit": "Write one JUnit file.", "json": JSON_HELP},
)
def report_merge(_context: Context, files: Any = (), junit: str = "", json: str = "") -> None:
    """Join the results of several machines: inv report-merge FILES."""
    with boundary("report-merge", json_to=json) as outcome:
        from harness import shards

        shards.merge(files, junit_to=junit, outcome=outcome, say=say)
