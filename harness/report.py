"""What a person reads: a line before and after each package, progress in a terminal, and the summary."""

from __future__ import annotations

import io
import os
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from harness.errors import UsageError, redact
from harness.results import BAD_OUTCOMES, DatabaseReset, PackageResult, TestResult, any_test_ran, totals

if TYPE_CHECKING:
    from rich.live import Live

    from harness.settings import Package

FAILURES_SHOWN = 50


class _Nowhere(io.StringIO):
    """Takes what nobody can read."""

    def write(self, text: str) -> int:
        """Forget `text`."""
        return len(text)


class Reporter:
    """Tells a run as it goes; in GitHub Actions each package's output is a group. `results` is what the run came to."""

    def __init__(
        self, *, shell: Mapping[str, str], expected: Mapping[str, float] | None = None, quiet: bool = False, stream: TextIO | None = None
    ) -> None:
        self.results: list[PackageResult] = []
        self.doubts: list[str] = []
        # sys.stdout is None where it was closed when we started.
        self._stream = stream or sys.stdout or _Nowhere()
        self.is_terminal = _is_terminal(self._stream, shell)
        self._quiet = quiet
        self._shell = shell
        self._expected = expected or {}
        self._grouped = shell.get("GITHUB_ACTIONS") == "true"
        self._started = time.monotonic()
        self._failed = 0
        self._now: tuple[Package, int, int, float] | None = None
        self._live: Live | None = None

    def say(self, line: str) -> None:
        """Print a line of ours, without passwords, before anything that a child prints next."""
        self._still()
        try:
            print(_encodable(redact(line), self._stream), file=self._stream, flush=True)
        except BrokenPipeError:
            # Whoever read us has seen enough; the run goes on, and its exit code still counts.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def doubt(self, reason: str) -> None:
        """Remember why the summary must not call this run isolated."""
        if reason not in self.doubts:
            self.doubts.append(reason)

    def begin(self, package: Package, number: int, total: int) -> None:
        """Say which package comes now, how far the run is, and how long this one took the last time."""
        self._now = (package, number, total, time.monotonic())
        if self._grouped:
            self.say(f"::group::{package.name}")
        notes = [f"about {seconds(self._expected[package.name])}"] if package.name in self._expected else []
        if number > 1:
            notes.append(f"{seconds(time.monotonic() - self._started)} so far")
        if self._failed:
            notes.append(f"{self._failed} not fine so far")
        if not (self._quiet and self.is_terminal):
            self.say(f"[{number}/{total}] {package.name}" + (f" ({', '.join(notes)})" if notes else ""))

    def end(self, result: PackageResult) -> None:
        """Say how the package ended."""
        position = f"[{self._now[1]}/{self._now[2]}] " if self._now else ""
        if result.status not in ("passed", "skipped", "empty"):
            self._failed += 1
        for command in result.processes:
            self.say(f"{result.package} left a process running, which was ended: {command or 'unknown'}")
        self.say(f"{position}{result_line(result)}")
        if self._grouped:
            self.say("::endgroup::")

    def show(self, output: Path) -> None:
        """Copy the captured output of a package that is not fine, byte for byte."""
        self._still()
        self._stream.flush()
        last = b"\n"
        with output.open("rb") as source:
            while block := source.read(1 << 16):
                last = block[-1:]
                if hasattr(self._stream, "buffer"):
                    self._stream.buffer.write(block)
                else:
                    self._stream.write(block.decode(errors="replace"))
        self._stream.write("" if last == b"\n" else "\n")
        self._stream.flush()

    def progress(self, events: Sequence[Mapping[str, object]]) -> None:
        """Show the package at work on one moving line: position, tests, failures, elapsed and expected time."""
        if self._now is None:
            return
        package, number, total, since = self._now
        tests = [event for event in events if "id" in event]
        collected = next((event["collected"] for event in events if "collected" in event), "?")
        failed = sum(event["outcome"] in BAD_OUTCOMES for event in tests)
        expected = f" of about {seconds(self._expected[package.name])}" if package.name in self._expected else ""
        line = f"[{number}/{total}] {package.name}: {len(tests)} of {collected} tests, {failed} failed, {self._failed} packages not fine, "
        line += f"{seconds(time.monotonic() - since)}{expected}, {seconds(time.monotonic() - self._started)} in all"
        from rich.text import Text

        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(file=self._stream), transient=True, auto_refresh=False)
            self._live.start()
        self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)

    def _still(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def summary_lines(
    results: Sequence[PackageResult], *, pristine: bool, doubts: Sequence[str] = (), slowest: int = 0, program: str = "inv"
) -> list[str]:
    """Return the summary: a line per package, each failure with the command that runs it again, and the verdict."""
    lines = ["", *(result_line(result) for result in results)]
    if slowest:
        tests = sorted((test for result in results for test in result.tests), key=lambda test: -test.seconds)[:slowest]
        lines += ["", f"slowest {len(tests)}:", *(f"  {seconds(test.seconds):>8}  {test.id}" for test in tests)]
    bad = [(result, test) for result in results for test in result.tests if test.outcome in BAD_OUTCOMES]
    for result, test in bad[:FAILURES_SHOWN]:
        lines += [
            "",
            f"{test.outcome}: {test.id}",
            *([f"  {test.reason}"] if test.reason else []),
            f"  {rerun_command(result, test, program=program)}",
        ]
    if len(bad) > FAILURES_SHOWN:
        lines += ["", f"and {len(bad) - FAILURES_SHOWN} more"]
    named = {result.package for result, _ in bad}
    for result in results:
        if not result.fine and result.status != "not-run" and result.package not in named:
            lines += [
                "",
                f"{result.status}: {result.package}{f': {result.detail}' if result.detail else ''}",
                f"  {rerun_command(result, None, program=program)}",
            ]
    return [*lines, "", *_skips(results), *verdict_lines(results, pristine=pristine, doubts=doubts, program=program)]


def rerun_command(result: PackageResult, test: TestResult | None, *, program: str = "inv") -> str:
    """Return the one command that runs a test, or a package, again; what a shell makes of it is what `--` hands on."""
    argv = [program, "test", *(["--e2e"] if result.role == "e2e" else []), "--package", result.package]
    nodeid = test.id.removeprefix(f"{result.package}::") if test else ""
    if ".py" in nodeid.partition("::")[0]:
        argv += ["--", nodeid]
    return shlex.join(argv)


def result_line(result: PackageResult) -> str:
    """Return a package's line: status, time, and its tests by outcome."""
    counts: dict[str, int] = {}
    for test in result.tests:
        counts[test.outcome] = counts.get(test.outcome, 0) + 1
    tests = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
    after = f" in {seconds(result.seconds)}" if result.exit is not None else ""
    detail = f" ({result.detail})" if result.detail else ""
    return f"{result.package}: {result.status}{detail}{after}{f': {tests}' if tests else ''}"


def reset_lines(databases: Iterable[DatabaseReset]) -> list[str]:
    """Return a line for each database that was reset: from where, how long, and whose sessions were in the way."""
    lines = []
    for database in databases:
        how = "cloned from its template" if database.source == "template" else f"migrated from zero, {database.migrations} migration(s)"
        line = f"{database.role} database {database.name!r} is pristine: {how}, {database.ms} ms"
        whose: dict[str, list[str]] = {}
        for one in database.ended:
            whose.setdefault(f"{one.user} ({one.application or 'unnamed'})", []).append(str(one.pid))
        ended = ", ".join(f"{who} pid {' '.join(pids)}" for who, pids in whose.items())
        lines.append(f"{line}; ended {len(database.ended)} session(s): {ended}" if ended else line)
    return lines


def ended_lines(databases: Iterable[DatabaseReset]) -> Iterator[str]:
    """Yield a line for each session that a reset ended."""
    for database in databases:
        for one in database.ended:
            yield f"ended session {one.pid} of {one.user} on {database.name!r} ({one.application or 'unnamed'}, {one.state})"


def seconds(duration: float) -> str:
    """Return a duration as a person reads it."""
    if duration < 10:  # noqa: PLR2004  # tenths tell something here
        return f"{duration:.2f} s"
    minutes, rest = divmod(duration, 60)
    return f"{int(minutes)} min {rest:.0f} s" if minutes else f"{duration:.1f} s"


def step_summary(results: Sequence[PackageResult], *, pristine: bool, doubts: Sequence[str] = ()) -> str:
    """Return the summary as Markdown, for GitHub's step summary."""
    rows = [f"| {_cell(result.package)} | {result.status} | {seconds(result.seconds)} | {len(result.tests)} |" for result in results]
    lines = ["| package | status | time | tests |", "|---|---|---|---|", *rows, ""]
    bad = [test for result in results for test in result.tests if test.outcome in BAD_OUTCOMES]
    lines += [f"- **{test.outcome}** `{test.id}`: {_cell(test.reason)}" for test in bad]
    return redact("\n".join([*lines, "", *verdict_lines(results, pristine=pristine, doubts=doubts)[:1], ""]))


def append_step_summary(path: Path, results: Sequence[PackageResult], *, pristine: bool, doubts: Sequence[str] = ()) -> None:
    """Append the Markdown summary to the file that GitHub Actions names; UsageError when that cannot be written."""
    try:
        with path.open("a", encoding="utf-8", errors="replace") as stream:
            stream.write(step_summary(results, pristine=pristine, doubts=doubts))
    except OSError as error:
        raise UsageError(
            f"GITHUB_STEP_SUMMARY {str(path)!r} cannot be written: {error.strerror}", next="Unset it, or name a writable file."
        ) from None


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _skips(results: Sequence[PackageResult]) -> list[str]:
    counted: dict[str, int] = {}
    for result in results:
        for variable, number in result.skipped_for.items():
            counted[variable] = counted.get(variable, 0) + number
    return [f"{number} skipped for want of {variable}" for variable, number in counted.items()]


def verdict_lines(results: Sequence[PackageResult], *, pristine: bool, doubts: Sequence[str] = (), program: str = "inv") -> list[str]:
    """Return the last word on a run, then how to look at the databases of what is not fine."""
    count = totals(results)
    bad = [result.package for result in results if not result.fine]
    ran = f"{count['tests']} tests in {count['packages']} packages"
    databases = "on pristine databases" if pristine else "not pristine: the databases were not reset"
    isolated = f"; not isolated: {'; '.join(doubts)}" if doubts else ""
    if bad and not any_test_ran(results):
        ran = "no test ran"
    said = f"not fine: {', '.join(bad)}; " if bad else "all fine: "
    roles = dict.fromkeys(result.role for result in results if not result.fine and result.status != "not-run")
    look = [f"the database as it was left: {program} psql{'' if role == 'test' else f' --database {role}'}" for role in roles]
    return [f"{said}{ran}, {databases}{isolated}", *look]


def _is_terminal(stream: TextIO, shell: Mapping[str, str]) -> bool:
    return stream.isatty() and shell.get("TERM", "") != "dumb" and not shell.get("CI")


def _encodable(line: str, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return line.encode(encoding, "backslashreplace").decode(encoding)
