"""What happened, as frozen values; to and from plain JSON data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

STATUSES = ("passed", "failed", "error", "crashed", "timeout", "empty", "missing", "skipped", "not-run")
OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
BAD_OUTCOMES = ("failed", "error")


class EndedSession(NamedTuple):
    """A session that a reset ended, named so that its owner can be found."""

    pid: int
    user: str
    application: str
    state: str


class DatabaseReset(NamedTuple):
    """One database made pristine: from where, with what, and whose sessions were in the way."""

    name: str
    role: str
    source: str
    fingerprint: str | None
    migrations: int
    ended: tuple[EndedSession, ...]
    ms: int
    phases: dict[str, float] = {}  # noqa: RUF012  # never changed, and a NamedTuple has no factories


class TestResult(NamedTuple):
    """One test: its id is `package::nodeid`; `output` is what a failure printed."""

    id: str
    outcome: str
    seconds: float
    reason: str = ""
    output: str = ""


class PackageResult(NamedTuple):
    """One package's run; `exit` is None when no process ran, `signal` names what killed it.

    `residue` is what the session found in the database afterwards; `processes` are command lines that outlived the package.
    `detail` explains a status that no test explains; `fine` says whether this package lets the run succeed.
    """

    package: str
    role: str
    status: str
    exit: int | None
    signal: str | None
    started: float
    seconds: float
    tests: tuple[TestResult, ...] = ()
    skipped_for: dict[str, int] = {}  # noqa: RUF012  # never changed, and a NamedTuple has no factories
    residue: object | None = None
    processes: tuple[str, ...] = ()
    detail: str = ""
    fine: bool = False


def totals(results: Iterable[PackageResult]) -> dict[str, int]:
    """Count packages by status and tests by outcome."""
    packages = list(results)
    statuses = Counter(result.status for result in packages)
    outcomes = Counter(test.outcome for result in packages for test in result.tests)
    count = {"packages": len(packages), "tests": sum(outcomes.values())}
    count |= {f"packages_{status.replace('-', '_')}": statuses[status] for status in STATUSES}
    return count | {outcome: outcomes[outcome] for outcome in OUTCOMES}


def any_test_ran(results: Iterable[PackageResult]) -> bool:
    """Say whether a test ran; a command that names no tests counts as one."""
    packages = list(results)
    told = any(test.outcome != "skipped" for result in packages for test in result.tests)
    return told or any(not result.tests and result.status in ("passed", "failed") for result in packages)


def exit_code(results: Iterable[PackageResult]) -> int:
    """Return 0 when every package is fine, else 1."""
    return 0 if all(result.fine for result in results) else 1


def encode(value: object) -> Any:
    """Turn any of these values, however nested, into plain JSON data."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {key: encode(item) for key, item in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [encode(item) for item in value]
    if isinstance(value, float):
        return round(value, 6)
    if value is None or isinstance(value, (str, int)):
        return value
    return str(value)


def decode_package(data: Mapping[str, Any]) -> PackageResult:
    """Return the package result that `encode` wrote; keys that a later version added are left out."""
    known = {key: data[key] for key in PackageResult._fields if key in data}
    known["tests"] = tuple(TestResult(**{key: test[key] for key in TestResult._fields if key in test}) for test in data.get("tests", ()))
    known["processes"] = tuple(data.get("processes", ()))
    return PackageResult(**known)


def decode_reset(data: Mapping[str, Any]) -> DatabaseReset:
    """Return the database reset that `encode` wrote."""
    known = {key: data[key] for key in DatabaseReset._fields if key in data}
    ended = tuple(EndedSession(**{key: session[key] for key in EndedSession._fields}) for session in data.get("ended", ()))
    return DatabaseReset(**{**known, "ended": ended})
