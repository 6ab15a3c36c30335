"""JUnit files: the one that a command wrote, read; and one of all packages, written and read back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import UsageError, redact
from harness.results import BAD_OUTCOMES, PackageResult, TestResult

if TYPE_CHECKING:
    from junitparser import TestCase, TestSuite


def read(path: Path, package: str) -> tuple[list[TestResult], str]:
    """Return the tests in a command's JUnit file, and what is wrong with the file, if anything."""
    from junitparser import JUnitXml, TestSuite

    if not path.is_file():
        return [], f"it did not write its JUnit file {path.name}"
    try:
        document: Any = JUnitXml.fromfile(str(path))
    except Exception as error:  # noqa: BLE001  # whatever parser it uses, the file is what is wrong
        return [], f"its JUnit file {path.name} cannot be read: {error}"
    suites = [document] if isinstance(document, TestSuite) else document
    return [_test(case, package) for suite in suites for case in suite], ""  # a suite hands out those of its inner suites too


def write(path: Path, results: Sequence[PackageResult]) -> None:
    """Write all packages to one file, each a suite of its own, and read it back.

    A package that was killed, or has no tests to say why it is not fine, has an error entry. Raises UsageError when the file
    cannot be written.
    """
    from junitparser import JUnitXml

    document = JUnitXml("harness")
    for result in results:
        if result.status != "not-run":
            document.add_testsuite(_suite(result))
    _write(path, document)


def join(path: Path, files: Sequence[Path]) -> None:
    """Write the suites of several JUnit files to one, and read it back. Raises UsageError for a file that is none."""
    from junitparser import JUnitXml, TestSuite

    document = JUnitXml("harness")
    for file in files:
        try:
            found: Any = JUnitXml.fromfile(str(file))
        except Exception as error:
            raise UsageError(f"{str(file)!r} is no JUnit file: {error}", next="Name files that `inv test --junit FILE` wrote.") from error
        for suite in [found] if isinstance(found, TestSuite) else found:
            document.add_testsuite(suite)
    _write(path, document)


def _write(path: Path, document: Any) -> None:
    from junitparser import JUnitXml

    document.update_statistics()
    try:
        document.write(str(path))
        JUnitXml.fromfile(str(path))
    except OSError as error:
        raise UsageError(f"the JUnit file cannot be written to {str(path)!r}: {error.strerror}", next="Name a writable file.") from None


def _test(case: TestCase, package: str) -> TestResult:
    from junitparser import Error, Failure, Skipped

    outcome, reason, output = "passed", "", ""
    for found in case.result:
        kinds = {Error: "error", Failure: "failed", Skipped: "skipped"}
        if type(found) in kinds and (outcome == "passed" or kinds[type(found)] != "skipped"):
            outcome, reason, output = kinds[type(found)], " ".join((found.message or "").split()), found.text or ""
    name = "::".join(part for part in (case.classname, case.name) if part)
    return TestResult(f"{package}::{name}", outcome, float(case.time or 0), reason, output if outcome != "skipped" else "")


def _suite(result: PackageResult) -> TestSuite:
    from junitparser import Error, Failure, Skipped, TestCase, TestSuite

    suite = TestSuite(_plain(result.package))
    suite.timestamp = _timestamp(result.started)
    for test in result.tests:
        _, _, nodeid = test.id.partition(f"{result.package}::")
        case = TestCase(_plain(nodeid), classname=_plain(result.package), time=test.seconds)
        kind = {"failed": Failure, "error": Error, "skipped": Skipped, "xfailed": Skipped}.get(test.outcome)
        if kind:
            entry = kind(_plain(test.reason), test.outcome)
            if test.output:
                entry.text = _plain(test.output)
            case.result = [entry]
        suite.add_testcase(case)
    if result.status in ("error", "crashed", "timeout", "missing") or not (
        result.fine or any(test.outcome in BAD_OUTCOMES for test in result.tests)
    ):
        case = TestCase(_plain(result.package), classname=_plain(result.package), time=result.seconds)
        case.result = [Error(_plain(result.detail or result.status), result.signal or result.status)]
        suite.add_testcase(case)
    suite.update_statistics()  # type: ignore[no-untyped-call]  # junitparser's
    return suite


def _timestamp(seconds: float) -> str:
    from datetime import datetime, timezone

    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


def _plain(text: str) -> str:
    """Return `text` without passwords and without the characters that XML has no way to write."""
    return "".join(
        character
        if character in "\t\n" or (character >= " " and character not in "\ufffe\uffff" and not "\ud800" <= character <= "\udfff")
        else "�"
        for character in redact(text)
    )
