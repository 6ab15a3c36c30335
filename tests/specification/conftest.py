"""One Mission Control for all scenarios, and the two whole runs that several of them look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.specification.mission import APPLICATION, TEST, Mission, Observation, mission_in, scratch_folder, wait_until
from tests.specification.observer import rows


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a server, by the fixture it asks for."""
    for item in items:
        if {"mission", "scratch"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.postgres)


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """Return a folder for repositories and clusters."""
    with scratch_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def mission(scratch: Path) -> Iterator[Mission]:
    """Run one repository with its own cluster for all scenarios: each leaves settings and test/.env as they were."""
    with mission_in(scratch) as mission:
        yield mission


class Ran(NamedTuple):
    """A whole run: its document, and what its packages observed."""

    document: dict[str, Any]
    observed: list[Observation]


@pytest.fixture(scope="session")
def first_run(mission: Mission) -> Ran:
    """Run the whole suite, while nothing else happens."""
    document = mission.document("test", "--e2e", code=None, env=mission.watch())
    return Ran(document, mission.observed())


class LiveRun(NamedTuple):
    """A reset and a whole run beside the working application: the run, and the application's side before and after."""

    ran: Ran
    oids: tuple[int, int]
    rows: tuple[dict[str, list[str]], dict[str, list[str]]]
    rounds: tuple[int, int]
    session: list[tuple[object, ...]]
    exit: int


@pytest.fixture(scope="session")
def live_run(mission: Mission) -> LiveRun:
    """Reset and run everything while the application reconciles and a session of it is at work."""
    url = mission.variables()[APPLICATION]
    with mission.application() as process, mission.connect(APPLICATION, application_name="console") as session:
        session.execute("CREATE TEMP TABLE work (step text)")
        wait_until(lambda: mission.rounds() > 3)
        oid, before, rounds = mission.oids()["hangar"], rows(url), mission.rounds()
        session.execute("INSERT INTO work SELECT 'before' FROM platform.organisations WHERE slug = 'apollo'")
        mission.harness("reset", "--fresh").expect(0)
        with mission.connect(TEST, application_name="left open"):
            mission.harness("reset").expect(0, "left open")
        session.execute("INSERT INTO work SELECT 'between' FROM platform.organisations WHERE slug = 'apollo'")
        document = mission.document("test", "--e2e", code=None, env=mission.watch())
        session.execute("INSERT INTO work SELECT 'after' FROM platform.organisations WHERE slug = 'apollo'")
        state = (oid, mission.oids()["hangar"]), (before, rows(url)), (rounds, mission.rounds())
        steps = session.execute("SELECT step FROM work").fetchall()
    return LiveRun(Ran(document, mission.observed()), *state, steps, process.returncode)
