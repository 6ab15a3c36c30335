"""From what a package's child wrote and how it ended to the package's result; pure, but for reading the file."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.process import signal_name
from harness.results import BAD_OUTCOMES, PackageResult, TestResult
from harness.settings import Package

OUTCOMES = "HARNESS_OUTCOMES"
VARIABLES = "HARNESS_VARIABLES"
APPLICATION = "HARNESS_APPLICATION"
BYTECODE = "HARNESS_BYTECODE"
TURN = "HARNESS_TURN"
"""The plugin's private variables: where outcomes go, the variables' names by role, where the application's database is,
and a folder that holds no bytecode yet."""

Event = dict[str, Any]

_ALL_PASSED, _TESTS_FAILED, _NO_TESTS = 0, 1, 5
_EXIT_MEANS = {
    1: "exit code 1, and no test failed",
    2: "pytest could not collect its tests, or was interrupted",
    3: "pytest was stopped, or failed itself",
    4: "pytest was used wrongly, or a conftest.py failed",
}


class Ended(NamedTuple):
    """How a package's child ended; `returncode` is negative for a signal, and `trouble` says why there is none."""

    started: float
    seconds: float
    returncode: int | None
    timed_out: bool = False
    trouble: str = ""
    processes: tuple[str, ...] = ()


class Follower:
    """Reads a growing file of events, each line once."""

    def __init__(self, path: Path) -> None:
        self._path, self._position = path, 0
        self._events: list[Event] = []

    def read(self) -> list[Event]:
        """Return all events so far; a line that is half-written, perhaps for ever, is left out."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._position)
                block = stream.read()
        except FileNotFoundError:
            return []
        whole = block[: block.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                self._events.append(event)
        return self._events


def read_events(path: Path) -> list[Event]:
    """Return the events in `path`; none where there is no such file."""
    return Follower(path).read()


def judge_pytest(package: Package, ended: Ended, events: Sequence[Event], *, root: Path, variables: Iterable[str]) -> PackageResult:
    """Return the result of a folder that pytest ran."""
    found = _from_events(package, events, root)
    unfinished = [event["started"] for event in events if "started" in event]
    last = unfinished[-1] if unfinished else None
    tests = list(found.values())
    if last is not None and last not in found and (cut := _cut_off(ended)):
        tests.append(TestResult(f"{package.name}::{_from_root(last, events, root)}", "error", 0.0, f"{cut} during this test"))
    status, detail = _pytest_status(ended, tests, events)
    return _result(package, ended, status, detail, tests, variables)


def judge_command(
    package: Package, ended: Ended, tests: Sequence[TestResult] | None, *, trouble: str = "", variables: Iterable[str] = ()
) -> PackageResult:
    """Return the result of a command: its exit code, and the tests of the JUnit file that it names, None without one."""
    status, detail = _killed(ended)
    if not status:
        bad = any(test.outcome in BAD_OUTCOMES for test in tests or ())
        if ended.returncode or bad:
            status, detail = "failed", f"exit code {ended.returncode}" if ended.returncode else "its JUnit file has failures"
        elif trouble:
            status, detail = "error", trouble
        elif tests is not None:
            status = _status_of_tests(tests)
        else:
            status = "passed"
    return _result(package, ended, status, detail, tests or (), variables)


def without_process(package: Package, status: str, detail: str, started: float) -> PackageResult:
    """Return the result of a package for which no process was started."""
    return PackageResult(package.name, package.role, status, None, None, started, 0.0, detail=detail)


def overridden(events: Iterable[Event]) -> list[str]:
    """Return the variables that the package's own code gave other values than we did."""
    return sorted({name for event in events for name in event.get("overridden", ())})


def neutralised(events: Iterable[Event]) -> list[str]:
    """Return the options of the project's pytest settings that were switched off."""
    return [event["neutralised"] for event in events if "neutralised" in event]


def is_fine(result: PackageResult, package: Package, *, own_variable: str, strict: bool, is_selection: bool, any_test_ran: bool) -> bool:
    """Say whether a package's result lets the run succeed."""
    if strict and result.skipped_for.get(own_variable):
        return False
    if result.status == "empty":
        return package.allow_empty or (is_selection and any_test_ran)
    return result.status in ("passed", "skipped")


def _from_events(package: Package, events: Sequence[Event], root: Path) -> dict[str, TestResult]:
    found = {}
    for event in events:
        if "id" in event:
            name = f"{package.name}::{_from_root(event['id'], events, root)}"
            found[event["id"]] = TestResult(name, event["outcome"], event["seconds"], event["reason"], event["output"])
    return found


def _from_root(nodeid: str, events: Sequence[Event], root: Path) -> str:
    """Return `nodeid` as it must be said from `root`: a package with its own pytest.ini has ids relative to that."""
    rootdir = next((Path(event["rootdir"]) for event in events if "rootdir" in event), root)
    if rootdir == root or root not in rootdir.parents:
        return nodeid
    return f"{rootdir.relative_to(root).as_posix()}/{nodeid}"


def _killed(ended: Ended) -> tuple[str, str]:
    if ended.trouble:
        return "error", ended.trouble
    if ended.timed_out:
        return "timeout", f"ended after its time limit of {ended.seconds:.0f} s"
    if ended.returncode is not None and ended.returncode < 0:
        return "crashed", f"killed by {signal_name(-ended.returncode)}"
    return "", ""


def _cut_off(ended: Ended) -> str:
    status, detail = _killed(ended)
    return detail if status else "the process ended"


def _pytest_status(ended: Ended, tests: Sequence[TestResult], events: Sequence[Event]) -> tuple[str, str]:
    status, detail = _killed(ended)
    code = ended.returncode
    if status:
        return status, detail
    if code in (_ALL_PASSED, _TESTS_FAILED, _NO_TESTS) and not any("finished" in event for event in events):
        return "crashed", f"ended with exit code {code} before its session was over"
    if code == _NO_TESTS:
        return ("skipped", "") if tests else ("empty", "no test was collected")
    is_bad = any(test.outcome in BAD_OUTCOMES for test in tests)
    if code != _ALL_PASSED:
        detail = "" if is_bad and code == _TESTS_FAILED else _EXIT_MEANS.get(code or 0, f"exit code {code}")
        return "failed" if code == _TESTS_FAILED else "error", detail
    started, collected = sum("started" in event for event in events), sum(event.get("collected", 0) for event in events)
    if started < collected or is_bad:
        return "error", f"stopped at test {started} of {collected}, with exit code 0"
    return _status_of_tests(tests), ""


def _status_of_tests(tests: Sequence[TestResult]) -> str:
    if not tests:
        return "empty"
    return "skipped" if all(test.outcome == "skipped" for test in tests) else "passed"


def _result(
    package: Package, ended: Ended, status: str, detail: str, tests: Sequence[TestResult], variables: Iterable[str]
) -> PackageResult:
    code, signal = ended.returncode, None
    if code is not None and code < 0:
        code, signal = 128 - code, signal_name(-code)
    counted = dict(_skipped_for(tests, variables))
    return PackageResult(
        package.name,
        package.role,
        status,
        code,
        signal,
        ended.started,
        ended.seconds,
        tuple(tests),
        counted,
        None,
        ended.processes,
        detail,
    )


_NOT_SET = re.compile(r"\b([A-Za-z_][A-Za-z0-9_]*) is not set\b")


def _skipped_for(tests: Iterable[TestResult], variables: Iterable[str]) -> Mapping[str, int]:
    """Count skips by the variable they are for: ours say `NAME is not set`, a project's own at least name it."""
    known = tuple(variables)
    count: Counter[str] = Counter()
    for test in tests:
        if test.outcome != "skipped":
            continue
        match = _NOT_SET.search(test.reason)
        named = [match[1]] if match else [name for name in known if re.search(rf"\b{name}\b", test.reason)]
        count.update(named[:1])
    return count
