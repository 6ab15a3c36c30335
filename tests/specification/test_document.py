"""docs/specification.md is complete: every requirement has scenarios, every scenario tests, every test and mutation its place."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.builders import HARNESS_ROOT
from tests.specification.mutations import MUTATIONS

DOCUMENT = HARNESS_ROOT / "docs/specification.md"
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split("|")]
    for line in DOCUMENT.read_text().splitlines()
    if re.match(r"\| (G?\d+|[a-z])", line)
]
SCENARIOS = {int(number): re.findall(r"\[(\w+)\]\(([^)]+)\)", tests) for number, _, tests in (row for row in ROWS if row[0].isdigit())}
REQUIREMENTS = {row[0]: [int(number) for number in row[2].split(",")] for row in ROWS if row[0].startswith("G")}
BROKEN = {row[0]: row[1] for row in ROWS if row[1].startswith("`test_")}


def written_in(path: Path) -> set[str]:
    """Return the names of a module's tests."""
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_no_scenario_is_missing() -> None:
    """Twelve scenarios of the specification and the five of the spine, each with a test."""
    assert list(SCENARIOS) == list(range(1, 18))
    assert [number for number, tests in SCENARIOS.items() if not tests] == []


@pytest.mark.parametrize("number", SCENARIOS)
def test_the_linked_tests_exist(number: int) -> None:
    """Each link leads to a module that has a test of that name."""
    for name, link in SCENARIOS[number]:
        assert name in written_in((DOCUMENT.parent / link).resolve())


def test_every_scenario_test_has_its_place() -> None:
    """No test of a scenario is left out of the document."""
    written = {name for path in ("isolation", "pristine", "setup") for name in written_in(Path(__file__).with_name(f"test_{path}.py"))}
    assert len(written) > 15
    assert written - {name for tests in SCENARIOS.values() for name, _ in tests} == set()


def test_every_requirement_has_scenarios_that_exist() -> None:
    """The guarantees G1 to G9, each shown by a scenario, and no scenario without a guarantee."""
    assert list(REQUIREMENTS) == [f"G{number}" for number in range(1, 10)]
    assert {number for numbers in REQUIREMENTS.values() for number in numbers} == set(SCENARIOS)


def test_every_mutation_is_listed_with_what_catches_it() -> None:
    """The document's list is the list that is run."""
    run = {mutation.name: f"`{mutation.test.rpartition('::')[2]}`" for mutation in MUTATIONS}
    assert run == BROKEN


def test_every_scenario_is_broken_by_a_mutation() -> None:
    """Each of the twelve has been seen red."""
    caught = {mutation.test.rpartition("::")[2] for mutation in MUTATIONS}
    unbroken = [number for number, tests in SCENARIOS.items() if not caught & {name for name, _ in tests}]
    assert unbroken == []
