"""From events and an exit code to a package's result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness import outcomes
from harness.outcomes import Ended
from harness.results import PackageResult
from harness.settings import Package

ROOT = Path("/root-of-it")
PACKAGE = Package("tests/a", "test", "tests/a")
ONE: list[dict[str, Any]] = [{"collected": 1, "rootdir": str(ROOT), "overridden": []}, {"started": "t.py::x"}]
OVER: dict[str, Any] = {"finished": 0}


def event(outcome: str, nodeid: str = "t.py::x", reason: str = "") -> dict[str, Any]:
    """Return a test's event."""
    return {"id": nodeid, "outcome": outcome, "seconds": 0.5, "reason": reason, "output": ""}


def judged(code: int | None, *events: dict[str, Any], timed_out: bool = False, trouble: str = "") -> PackageResult:
    """Judge a pytest package that ended so."""
    ended = Ended(1.0, 2.0, code, timed_out, trouble)
    return outcomes.judge_pytest(PACKAGE, ended, events, root=ROOT, variables=["TEST_URL", "E2E_URL"])


TABLE = {
    "passed": (judged(0, *ONE, event("passed"), OVER), "passed", 0, None),
    "failed": (judged(1, *ONE, event("failed"), OVER), "failed", 1, None),
    "interrupted": (judged(2, OVER), "error", 2, None),
    "internal": (judged(3, OVER), "error", 3, None),
    "usage": (judged(4), "error", 4, None),
    "empty": (judged(5, OVER), "empty", 5, None),
    "module-skips": (judged(5, event("skipped"), OVER), "skipped", 5, None),
    "odd-code": (judged(77, OVER), "error", 77, None),
    "killed": (judged(-9, *ONE), "crashed", 137, "SIGKILL"),
    "cut-off": (judged(0, *ONE), "crashed", 0, None),
    "timeout": (judged(-15, *ONE, timed_out=True), "timeout", 143, "SIGTERM"),
    "not-started": (judged(None, trouble="python cannot be started"), "error", None, None),
    "unfinished": (judged(0, *ONE, OVER), "error", 0, None),
    "none-of-those-collected": (judged(0, {"collected": 2}, OVER), "error", 0, None),
    "no-test": (judged(0, OVER), "empty", 0, None),
}


@pytest.mark.parametrize("name", TABLE)
def test_an_end_has_one_status(name: str) -> None:
    """Exit code, signal and what was written say it together."""
    result, status, code, signal = TABLE[name]
    assert (result.status, result.exit, result.signal) == (status, code, signal)


def test_the_test_at_work_is_an_error_entry() -> None:
    """A killed child leaves what it had, and the test that it died in."""
    result = judged(-11, *ONE, event("passed"), {"started": "t.py::y"})
    assert [(test.id, test.outcome, test.reason) for test in result.tests] == [
        ("tests/a::t.py::x", "passed", ""),
        ("tests/a::t.py::y", "error", "killed by SIGSEGV during this test"),
    ]


def test_ids_are_told_from_the_root() -> None:
    """The rootdir of pytest may lie below ours, and is elsewhere for a symbolic link."""
    below: list[dict[str, Any]] = [{"collected": 1, "rootdir": f"{ROOT}/tests/a"}, event("passed"), OVER]
    assert judged(0, *below).tests[0].id == "tests/a::tests/a/t.py::x"
    elsewhere: list[dict[str, Any]] = [{"collected": 1, "rootdir": "/other"}, event("passed"), OVER]
    assert judged(0, *elsewhere).tests[0].id == "tests/a::t.py::x"


def test_the_last_word_on_a_test_counts() -> None:
    """A flickering test that a plugin ran again is one test."""
    assert [test.outcome for test in judged(0, *ONE, event("failed"), event("passed"), OVER).tests] == ["passed"]


@pytest.mark.parametrize(
    ("reason", "variable"),
    [
        ("TEST_URL is not set; run test/bootstrap-stack.sh", "TEST_URL"),
        ("OTHER is not set; run it", "OTHER"),
        ("needs E2E_URL", "E2E_URL"),
        ("needs MY_E2E_URL_TOO", None),
        ("not today", None),
    ],
)
def test_skips_are_counted_by_variable(reason: str, variable: str | None) -> None:
    """Ours say that a name is not set; a project's own at least name one that is ours."""
    assert judged(0, *ONE, event("skipped", reason=reason), OVER).skipped_for == ({variable: 1} if variable else {})


def test_a_half_written_line_is_left_out(tmp_path: Path) -> None:
    """A child may be killed within a write; nothing that is whole is lost."""
    path = tmp_path / "outcomes"
    path.write_text(json.dumps(event("passed")) + '\n[1]\n{"id": "t.py::y", "outc')
    assert outcomes.read_events(path) == [event("passed")]
    assert outcomes.read_events(tmp_path / "none") == []


def test_what_the_plugin_noticed_is_told() -> None:
    """Options that had no effect, and variables that the package's own code changed."""
    events: list[dict[str, Any]] = [{"neutralised": "--lf"}, {"collected": 1, "overridden": ["B", "A"]}]
    assert outcomes.neutralised(events) == ["--lf"]
    assert outcomes.overridden(events) == ["A", "B"]


FINE: dict[str, tuple[str, dict[str, bool], bool]] = {
    "passed": ("passed", {}, True),
    "skipped": ("skipped", {}, True),
    "failed": ("failed", {"any_test_ran": True, "is_selection": True}, False),
    "empty": ("empty", {}, False),
    "empty-selection": ("empty", {"is_selection": True, "any_test_ran": True}, True),
    "empty-selection-of-nothing": ("empty", {"is_selection": True}, False),
    "not-run": ("not-run", {}, False),
}


@pytest.mark.parametrize("name", FINE)
def test_what_is_fine(name: str) -> None:
    """Passed, skipped, and empty where that is allowed or another package had the selection's tests."""
    status, changes, fine = FINE[name]
    given: dict[str, Any] = {"own_variable": "TEST_URL", "strict": False, "is_selection": False, "any_test_ran": False, **changes}
    result = outcomes.without_process(PACKAGE, status, "", 1.0)
    assert outcomes.is_fine(result, PACKAGE, **given) is fine
    assert outcomes.is_fine(result, PACKAGE._replace(allow_empty=True), **given) is (fine or status == "empty")


@pytest.mark.parametrize(("skipped_for", "strict", "fine"), [("TEST_URL", True, False), ("TEST_URL", False, True), ("E2E_URL", True, True)])
def test_strict_counts_the_own_variable_alone(skipped_for: str, *, strict: bool, fine: bool) -> None:
    """The other class's variable is never there."""
    result = outcomes.without_process(PACKAGE, "passed", "", 1.0)._replace(skipped_for={skipped_for: 1})
    assert outcomes.is_fine(result, PACKAGE, own_variable="TEST_URL", strict=strict, is_selection=False, any_test_ran=True) is fine
