"""Results are values that survive JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import results
from harness.results import DatabaseReset, EndedSession, PackageResult

TEST = results.TestResult("tests/a::tests/a/test_a.py::test_x", "failed", 0.25, "assert 1 == 2", "def test_x(): …")
PACKAGE = PackageResult(
    "tests/a", "test", "failed", 1, None, 1000.5, 2.5, (TEST,), {"E2E_DATABASE_URL": 2}, None, ("sleep 9",), "why", fine=False
)
RESET = DatabaseReset("app_x", "test", "migrated", None, 5, (EndedSession(1, "dev", "psql", "idle"),), 40, {"build": 1.5})


def test_a_package_survives_json() -> None:
    """What is written is what is read back."""
    assert results.decode_package(json.loads(json.dumps(results.encode(PACKAGE)))) == PACKAGE


def test_a_reset_survives_json() -> None:
    """The sessions that it ended too."""
    assert results.decode_reset(json.loads(json.dumps(results.encode(RESET)))) == RESET


def test_what_a_later_version_added_is_left_out() -> None:
    """Later versions only add keys, and an older one reads their documents."""
    data = results.encode(PACKAGE)
    data["new"] = data["tests"][0]["new"] = 1
    assert results.decode_package(data) == PACKAGE
    assert results.decode_reset({**results.encode(RESET), "new": 1}) == RESET


def test_what_an_earlier_version_lacked_has_its_default() -> None:
    """A document without the keys that were added since is read all the same."""
    data = {key: value for key, value in results.encode(PACKAGE).items() if key not in ("processes", "detail", "fine")}
    assert results.decode_package(data) == PACKAGE._replace(processes=(), detail="", fine=False)


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_plain_data_encodes_to_itself(data: object) -> None:
    """Whatever a residue may be made of."""
    assert results.encode(data) == data


def test_other_values_encode_to_what_a_person_reads() -> None:
    """Paths as text, sets as lists, seconds to the microsecond."""
    assert results.encode({"a": {1}, 2: Path("/x"), "c": 0.123456789}) == {"a": [1], "2": "/x", "c": 0.123457}


def test_totals_count_packages_by_status_and_tests_by_outcome() -> None:
    """Every status and outcome is there, those of which there was none as 0."""
    counted = results.totals([PACKAGE, PACKAGE._replace(status="not-run", tests=())])
    assert {key: number for key, number in counted.items() if number} == {
        "packages": 2,
        "tests": 1,
        "packages_failed": 1,
        "packages_not_run": 1,
        "failed": 1,
    }
    assert len(counted) == 2 + len(results.STATUSES) + len(results.OUTCOMES)


@pytest.mark.parametrize(("fine", "code"), [((), 0), ((True, True), 0), ((True, False), 1)])
def test_the_exit_code_is_1_unless_all_are_fine(fine: tuple[bool, ...], code: int) -> None:
    """`fine` was settled when the run was over."""
    assert results.exit_code([PACKAGE._replace(fine=one) for one in fine]) == code
