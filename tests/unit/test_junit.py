"""JUnit files, written and read back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from junitparser import JUnitXml

from harness import errors, junit, results
from harness.results import PackageResult

A = results.TestResult
TESTS = (
    A("tests/a::t.py::ok", "passed", 0.25),
    A("tests/a::t.py::bad", "failed", 0.5, "assert 1 == 2", "trace <&>"),
    A("tests/a::t.py::broken", "error", 0.0, "no fixture"),
    A("tests/a::t.py::skipped", "skipped", 0.0, "not today"),
    A("tests/a::t.py::known", "xfailed", 0.0, "known"),
)
PACKAGE = PackageResult("tests/a", "test", "failed", 1, None, 1000.0, 1.5, TESTS)


def test_a_file_is_what_the_results_say(tmp_path: Path) -> None:
    """Read back by junitparser and compared."""
    junit.write(tmp_path / "out.xml", [PACKAGE, PACKAGE._replace(package="tests/b", status="not-run", tests=())])
    (suite,) = JUnitXml.fromfile(str(tmp_path / "out.xml"))
    assert (suite.name, suite.tests, suite.failures, suite.errors, suite.skipped) == ("tests/a", 5, 1, 1, 2)
    assert [(case.classname, case.name) for case in suite] == [("tests/a", test.id.partition("::")[2]) for test in TESTS]
    assert next(case.result[0].text for case in suite if case.result) == "trace <&>"


def test_our_own_file_reads_back(tmp_path: Path) -> None:
    """An expected failure is a skip there; all else is the same."""
    junit.write(tmp_path / "out.xml", [PACKAGE])
    found, trouble = junit.read(tmp_path / "out.xml", "again")
    assert trouble == ""
    assert [(test.id, test.outcome, test.seconds, test.reason, test.output) for test in found] == [
        (
            f"again::tests/a::{test.id.partition('::')[2]}",
            test.outcome.replace("xfailed", "skipped"),
            test.seconds,
            test.reason,
            test.output,
        )
        for test in TESTS
    ]


@pytest.mark.parametrize("status", ["error", "crashed", "timeout", "missing", "empty", "failed"])
def test_a_package_without_a_failing_test_has_an_entry(tmp_path: Path, status: str) -> None:
    """Else a reader of the file would take it for success."""
    junit.write(tmp_path / "out.xml", [PACKAGE._replace(status=status, tests=(), detail="why")])
    (suite,) = JUnitXml.fromfile(str(tmp_path / "out.xml"))
    assert suite.errors == 1
    assert "why" in (tmp_path / "out.xml").read_text()


@given(st.text())
def test_any_text_can_be_written(text: str) -> None:
    """Control characters and lone surrogates too, which XML has no way to write."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.xml"
        junit.write(path, [PACKAGE._replace(tests=(TESTS[1]._replace(reason=text, output=text, id=f"tests/a::{text}"),))])
        assert len(junit.read(path, "a")[0]) == 1


NESTED = '<testsuites><testsuite name="o"><testsuite name="i"><testcase name="x"/></testsuite></testsuite></testsuites>'


@pytest.mark.parametrize("text", [NESTED, '<testsuite name="s"><testcase name="x"/></testsuite>'], ids=["nested", "bare"])
def test_other_tools_shapes_are_read(tmp_path: Path, text: str) -> None:
    """Suites within suites, and one without a list around it."""
    (tmp_path / "in.xml").write_text(text)
    assert [test.id for test in junit.read(tmp_path / "in.xml", "p")[0]] == ["p::x"]


@pytest.mark.parametrize(("text", "trouble"), [(None, "did not write"), ("<testsuites", "cannot be read"), ("<html/>", "cannot be read")])
def test_a_file_that_is_none_is_trouble(tmp_path: Path, text: str | None, trouble: str) -> None:
    """Missing, cut off, or something else."""
    if text is not None:
        (tmp_path / "in.xml").write_text(text)
    found, said = junit.read(tmp_path / "in.xml", "p")
    assert found == []
    assert trouble in said


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """The path is named."""
    with pytest.raises(errors.UsageError, match="cannot be written"):
        junit.write(tmp_path / "no" / "out.xml", [PACKAGE])
