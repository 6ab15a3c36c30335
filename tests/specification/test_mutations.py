"""The scenarios can fail: every promise broken on purpose turns one of them red.

CI breaks one; `inv test --package tests/specification -- -k scenario_red --rounds 99` breaks all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.specification.mutations import MUTATIONS, Mutation, mutate, place_of, scenario, scratch_copy

ROUNDS_OF_CI = 3


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose how many promises to break: one, or as many as `--rounds` says where it says more than CI's."""
    if "broken" in metafunc.fixturenames:
        rounds = metafunc.config.getoption("--rounds")
        chosen = MUTATIONS[: rounds if rounds > ROUNDS_OF_CI else 1]
        metafunc.parametrize("broken", chosen, ids=[mutation.name for mutation in chosen])


def test_a_mutation_turns_its_scenario_red(broken: Mutation, tmp_path: Path) -> None:
    """In a scratch copy with one promise broken, the scenario's test fails, and for the reason that was expected."""
    root = tmp_path / "copy"
    scratch_copy(root)
    mutate(root, broken)
    scenario(root, broken.test).expect(1, broken.symptom)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_every_mutation_fits(mutation: Mutation) -> None:
    """What a mutation changes stands in the harness exactly once: after a change of the code, mend its text here."""
    for old, _ in mutation.edits:
        assert place_of(old).suffix == ".py"
