"""What a person reads is a function of the results."""

from __future__ import annotations

import io
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import errors, report, results
from harness.report import Reporter
from harness.results import DatabaseReset, EndedSession, PackageResult
from harness.settings import Package

ORGS = PackageResult(
    "tests/orgs",
    "test",
    "passed",
    0,
    None,
    1000.0,
    3.2,
    (results.TestResult("tests/orgs::tests/orgs/test_a.py::test_ok", "passed", 0.25),),
    fine=True,
)
FAILING = results.TestResult("tests/plans::tests/plans/test_p.py::test_x[a b]", "failed", 12.5, "assert 1 == 2", "trace")
PLANS = PackageResult(
    "tests/plans",
    "test",
    "failed",
    1,
    None,
    1003.2,
    75.4,
    (FAILING, results.TestResult("tests/plans::tests/plans/test_p.py::test_y", "skipped", 0.0, "E2E_DATABASE_URL is not set")),
    {"E2E_DATABASE_URL": 1},
)
SIGNUP = PackageResult("tests/e2e/signup", "e2e", "crashed", 137, "SIGKILL", 1078.6, 0.6, detail="killed by SIGKILL")
LATER = PackageResult("tests/e2e/later", "e2e", "not-run", None, None, 1079.0, 0.0)

SUMMARY = """
tests/orgs: passed in 3.20 s: 1 passed
tests/plans: failed in 1 min 15 s: 1 failed, 1 skipped
tests/e2e/signup: crashed (killed by SIGKILL) in 0.60 s
tests/e2e/later: not-run

slowest 2:
    12.5 s  tests/plans::tests/plans/test_p.py::test_x[a b]
    0.25 s  tests/orgs::tests/orgs/test_a.py::test_ok

failed: tests/plans::tests/plans/test_p.py::test_x[a b]
  assert 1 == 2
  inv test --package tests/plans -- 'tests/plans/test_p.py::test_x[a b]'

crashed: tests/e2e/signup: killed by SIGKILL
  inv test --e2e --package tests/e2e/signup

1 skipped for want of E2E_DATABASE_URL
not fine: tests/plans, tests/e2e/signup, tests/e2e/later; 3 tests in 4 packages, on pristine databases
the database as it was left: inv psql
the database as it was left: inv psql --database e2e"""


def test_the_summary_as_a_whole() -> None:
    """A line per package, the slowest on request, each failure with its command, and the last word."""
    assert report.summary_lines([ORGS, PLANS, SIGNUP, LATER], pristine=True, slowest=2) == SUMMARY.split("\n")


def test_a_summary_of_what_is_fine_is_short() -> None:
    """No command to run again, no database to look at."""
    assert report.summary_lines([ORGS], pristine=True) == [
        "",
        "tests/orgs: passed in 3.20 s: 1 passed",
        "",
        "all fine: 1 tests in 1 packages, on pristine databases",
    ]


@pytest.mark.parametrize(
    ("pristine", "doubts", "word"),
    [
        (True, (), "all fine: 1 tests in 1 packages, on pristine databases"),
        (False, (), "all fine: 1 tests in 1 packages, not pristine: the databases were not reset"),
        (True, ("a", "b"), "all fine: 1 tests in 1 packages, on pristine databases; not isolated: a; b"),
    ],
)
def test_the_verdict_says_on_what_it_stands(*, pristine: bool, doubts: tuple[str, ...], word: str) -> None:
    """A run without a reset is not called pristine, nor one with a doubt isolated."""
    assert report.verdict_lines([ORGS], pristine=pristine, doubts=doubts) == [word]


def test_no_test_ran_is_said() -> None:
    """A selection that matched nothing is no success."""
    nothing = ORGS._replace(status="empty", tests=(), fine=False)
    assert "no test ran" in report.verdict_lines([nothing], pristine=True)[0]
    command = ORGS._replace(tests=(), fine=False)
    assert "no test ran" not in report.verdict_lines([command], pristine=True)[0]


def test_many_failures_are_cut() -> None:
    """Somebody reads this."""
    many = PLANS._replace(tests=tuple(FAILING._replace(id=f"tests/plans::tests/plans/test_p.py::test_{n}") for n in range(60)))
    lines = report.summary_lines([many], pristine=True)
    assert "and 10 more" in lines
    assert sum(line.startswith("failed: ") for line in lines) == report.FAILURES_SHOWN


@given(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1))
def test_a_rerun_command_reads_back(text: str) -> None:
    """Whatever a parameter's id is made of, a shell hands it on unchanged."""
    test = FAILING._replace(id=f"tests/plans::tests/plans/test_p.py::test_x[{text}]")
    assert shlex.split(report.rerun_command(PLANS, test)) == [
        *("inv", "test", "--package", "tests/plans", "--"),
        f"tests/plans/test_p.py::test_x[{text}]",
    ]


def test_a_commands_test_cannot_be_named_to_it() -> None:
    """The package is run again."""
    test = FAILING._replace(id="tests/plans::pkg::TestBad")
    assert report.rerun_command(PLANS, test) == "inv test --package tests/plans"


@pytest.mark.parametrize(
    ("duration", "text"), [(0.004, "0.00 s"), (9.99, "9.99 s"), (12.34, "12.3 s"), (75.4, "1 min 15 s"), (3600, "60 min 0 s")]
)
def test_durations(duration: float, text: str) -> None:
    """As a person reads them."""
    assert report.seconds(duration) == text


def test_a_reset_is_told_with_whom_it_ended() -> None:
    """A name that leads to the owner of what was in the way."""
    done = DatabaseReset(
        "app_x", "test", "template", "ab", 3, (EndedSession(7, "dev", "", "idle"), EndedSession(9, "dev", "", "active")), 41
    )
    assert report.reset_lines([done, done._replace(source="migrated", ended=())]) == [
        "test database 'app_x' is pristine: cloned from its template, 41 ms; ended 2 session(s): dev (unnamed) pid 7 9",
        "test database 'app_x' is pristine: migrated from zero, 3 migration(s), 41 ms",
    ]


def test_the_step_summary_is_markdown(tmp_path: Path) -> None:
    """A table, the failures, the verdict; no cell ends early."""
    odd = PLANS._replace(package="a|b<c", tests=(FAILING._replace(reason="x | <y>"),))
    report.append_step_summary(tmp_path / "s.md", [odd], pristine=True)
    text = (tmp_path / "s.md").read_text()
    assert "| a\\|b&lt;c | failed | 1 min 15 s | 1 |" in text
    assert "- **failed** `tests/plans::tests/plans/test_p.py::test_x[a b]`: x \\| &lt;y>" in text
    with pytest.raises(errors.UsageError, match="GITHUB_STEP_SUMMARY"):
        report.append_step_summary(tmp_path, [odd], pristine=True)


PACKAGE = Package("tests/orgs", "test", "tests/orgs")


def told(
    *, environment: dict[str, str] | None = None, expected: dict[str, float] | None = None, number: int = 1
) -> tuple[Reporter, io.StringIO]:
    """Return a reporter that has begun a package, and what it wrote to."""
    stream = io.StringIO()
    reporter = Reporter(shell=environment or {}, expected=expected, stream=stream)
    reporter.begin(PACKAGE, number, 2)
    return reporter, stream


def test_a_line_before_and_a_line_after() -> None:
    """Ours are two lines a package."""
    reporter, stream = told(expected={"tests/orgs": 3.0})
    reporter.end(ORGS)
    assert stream.getvalue() == "[1/2] tests/orgs (about 3.00 s)\n[1/2] tests/orgs: passed in 3.20 s: 1 passed\n"


def test_what_was_left_running_is_named() -> None:
    """With its command line, or as unknown where that cannot be seen."""
    reporter, stream = told()
    reporter.end(ORGS._replace(processes=("sleep 9", "")))
    assert "tests/orgs left a process running, which was ended: sleep 9\n" in stream.getvalue()
    assert "which was ended: unknown\n" in stream.getvalue()


def test_github_folds_a_package_away() -> None:
    """The end line closes the group."""
    reporter, stream = told(environment={"GITHUB_ACTIONS": "true"})
    reporter.end(ORGS)
    lines = stream.getvalue().splitlines()
    assert (lines[0], lines[-1]) == ("::group::tests/orgs", "::endgroup::")


def test_doubts_are_kept_once() -> None:
    """In the order in which they came up."""
    reporter, _ = told()
    for reason in ("b", "a", "b"):
        reporter.doubt(reason)
    assert reporter.doubts == ["b", "a"]


def test_a_line_shows_no_password_and_fits_the_stream() -> None:
    """An ASCII terminal gets escapes rather than an error."""
    errors.conceal("hunter2hunter2")
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    Reporter(shell={}, stream=stream).say("at hunter2hunter2: é")
    assert raw.getvalue() == b"at ***: \\xe9\n"


def test_captured_output_is_shown_byte_for_byte(tmp_path: Path) -> None:
    """What is no text too; a missing end of line is added, so that ours is a line of its own."""
    output = tmp_path / "output"
    output.write_bytes(b"\xff\x00no end of line")
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    Reporter(shell={}, stream=stream).show(output)
    assert raw.getvalue() == b"\xff\x00no end of line\n"
    plain = io.StringIO()
    Reporter(shell={}, stream=plain).show(output)
    assert plain.getvalue() == "\N{REPLACEMENT CHARACTER}\0no end of line\n"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def test_progress_is_one_line_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Position, tests, failures, time so far and expected; the next line of ours stands alone."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()
    reporter = Reporter(shell={"TERM": "xterm"}, expected={"tests/orgs": 90.0}, quiet=True, stream=stream)  # noqa: S604  # the environment, not a shell
    reporter.progress([])
    reporter.begin(PACKAGE, 1, 2)
    assert stream.getvalue() == ""
    reporter.progress([{"collected": 3}, {"id": "a", "outcome": "passed"}, {"id": "b", "outcome": "failed"}])
    reporter.end(ORGS)
    shown = " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue()).split())
    assert "[1/2] tests/orgs: 2 of 3 tests, 1 failed, 0 packages not fine" in shown
    assert "of about 1 min 30 s" in shown
    assert shown.endswith("[1/2] tests/orgs: passed in 3.20 s: 1 passed")


def test_a_closed_pipe_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever read us has gone; what we still say goes nowhere."""

    class Closed(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    gone: list[int] = []
    monkeypatch.setattr("os.dup2", lambda _source, target: gone.append(target))
    Reporter(shell={}, stream=Closed()).say("nobody hears this")
    assert gone == [1]


def test_a_closed_stdout_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon has none."""
    monkeypatch.setattr("sys.stdout", None)
    reporter = Reporter(shell={})
    reporter.say("nobody hears this")
    assert not reporter.is_terminal
