"""Folders in the manners of other tools: six ways to write the same four migrations, one schema."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import streams
from harness.settings import Stream
from tests.migrations.project import Project

DATA = Path(__file__).parent / "data"
MANNERS = sorted(folder.name for folder in DATA.iterdir())


@pytest.fixture(scope="module")
def schemas() -> dict[str, tuple[str, ...]]:
    """Collect what the manners make."""
    return {}


@pytest.mark.parametrize("manner", MANNERS)
def test_every_manner_makes_the_same_schema(project: Project, schemas: dict[str, tuple[str, ...]], manner: str) -> None:
    """Names, ways down, marks and wrappings of each tool are understood, or left out aloud."""
    stream = Stream("core", str(DATA / manner))
    plan = streams.plan(project.settings(stream))
    assert len(project.apply(stream)) == 4
    schemas[manner] = project.describe()
    assert any(line.startswith("index public.parcels_label") for line in schemas[manner])
    assert len(set(schemas.values())) == 1
    downs = [path.name for path in (DATA / manner).iterdir() if path.name.endswith(".down.sql") or path.name.startswith("U")]
    assert len(plan.notices) == len(downs)
    assert all("leads down" in notice for notice in plan.notices)


def test_the_corpus_is_there() -> None:
    """Six manners."""
    assert MANNERS == ["dbmate", "flyway", "golang-migrate", "goose", "sql-migrate", "sqlmigrate"]
