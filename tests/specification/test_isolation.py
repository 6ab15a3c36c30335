"""Scenarios 1, 2, 4 and 8: the application, a committing suite and other packages never show in a package's verdict."""

from __future__ import annotations

import itertools

import psycopg
import pytest

from tests.specification.conftest import LiveRun, Ran
from tests.specification.mission import APPLICATION, E2E, PREFIX, TEST, Mission, Observation, outcomes, wait_until

ONBOARDING, PLANS, ENTITLEMENTS, SIGN_IN = (PREFIX + name for name in ("e2e/onboarding", "plans", "entitlements", "sign_in"))
LADDER = "SELECT 1 FROM billing.default_plan_ladders WHERE org_type = 'academy'"


def test_live_application(live_run: LiveRun, first_run: Ran) -> None:
    """While the application commits again and again, no row that a package test can see changes, and every test passes as without it."""
    before, after = live_run.rounds
    assert after > before + 3, "the application did not reconcile during the run"
    test_packages = [seen for seen in live_run.ran.observed if seen.package != "onboarding"]
    assert len(test_packages) == 7
    changed = {seen.package: name for seen in test_packages for name in seen.before if seen.before[name] != seen.after[name]}
    assert changed == {}
    assert {
        table: found for table, found in test_packages[0].before.items() if table in ("platform.reconciler_runs", "platform.organisations")
    } == {
        "platform.reconciler_runs": [],
        "platform.organisations": [],
    }
    assert outcomes(live_run.ran.document) == outcomes(first_run.document)
    assert set(outcomes(first_run.document).values()) == {"passed"}


def test_committing_e2e(mission: Mission) -> None:
    """The e2e suite commits what a package test asserts the absence of, that package runs after it without a reset, and is green."""
    mission.harness("reset").expect(0)
    mission.harness("test", "--no-reset", "--package", ONBOARDING).expect(0)
    mission.harness("test", "--no-reset", "--package", ENTITLEMENTS, "--package", SIGN_IN).expect(0)
    assert mission.ask(LADDER, E2E) == [(1,)]


def test_committing_e2e_on_a_shared_database_is_red(mission: Mission) -> None:
    """With both variables on one database the same packages are red: the scenario above can fail."""
    mission.harness("reset", "--database", "test").expect(0)
    shared = dict.fromkeys((TEST, E2E), mission.variables()[TEST])
    mission.pytest(ONBOARDING, env=shared).expect(0)
    done = mission.pytest(ENTITLEMENTS, SIGN_IN, env=shared)
    done.expect(1, "test_academies_have_no_default_ladder", "test_orbit_has_no_group_mappings")


def test_committing_e2e_on_a_shared_database_is_refused(mission: Mission) -> None:
    """The harness itself refuses two variables on one database, and touches nothing."""
    before = mission.oids()
    with mission.changed({E2E: mission.variables()[TEST]}):
        mission.harness("test", "--e2e").expect(3, TEST, E2E)
    assert mission.oids() == before


def test_no_interleaving(first_run: Ran) -> None:
    """No two packages of a run overlap in time, and the asserting ones do not see what the setting ones commit for a while."""
    spans = first_run.observed
    assert len(spans) == 8
    assert overlapping(spans) == []
    assert {"plans", "providers", "entitlements", "sign_in"} <= {seen.package for seen in spans}
    assert set(outcomes(first_run.document).values()) == {"passed"}


def overlapping(spans: list[Observation]) -> list[tuple[str, str]]:
    """Return the pairs of packages that ran at the same time."""
    ordered = sorted(spans, key=lambda seen: seen.begun)
    return [(one.package, two.package) for one, two in itertools.combinations(ordered, 2) if two.begun < one.ended]


def test_no_interleaving_of_two_runs(mission: Mission) -> None:
    """A second run on the same databases waits for the first one's last package, and says whom it waits for."""
    env = mission.watch()
    with mission.gate("plans"), mission.started("test", "--package", PLANS, env=env) as first:
        mission.await_package("plans")
        with mission.started("test", "--package", ENTITLEMENTS, env=env) as second:
            assert second.stdout is not None
            line = second.stdout.readline()
            (mission.observations / "plans.gate").unlink()
            mission.finished(first)
            mission.finished(second)
    assert f"in use by another run (pid {first.pid} of worktree {str(mission.root)!r}" in line
    spans = mission.observed()
    assert [seen.package for seen in spans] == ["plans", "entitlements"]
    assert overlapping(spans) == []


def test_interleaving_on_purpose_is_red(mission: Mission) -> None:
    """Run beside the setting package, the asserting one sees the set row: the scenario above can fail."""
    mission.harness("reset", "--database", "test").expect(0)
    env = {TEST: mission.variables()[TEST], "MISSION_CONTROL_HOLD": "60"}
    with mission.pytest_beside(PLANS, env=env):
        wait_until(lambda: mission.ask(LADDER, TEST))
        mission.pytest(ENTITLEMENTS, env=env).expect(1, "test_academies_have_no_default_ladder")
        assert mission.ask(LADDER, TEST) == [(1,)]
    assert mission.ask(LADDER, TEST) == []
    mission.pytest(ENTITLEMENTS, env=env).expect(0)


def test_application_left_alone(live_run: LiveRun) -> None:
    """Demo data, oid, an open, working session and the application itself live through resets and runs."""
    before, after = live_run.oids
    assert before == after
    demo, kept = ({table: found for table, found in seen.items() if table != "platform.reconciler_runs"} for seen in live_run.rows)
    assert len(demo["platform.organisations"]) == 3
    assert demo == kept
    assert live_run.session == [("before",), ("between",), ("after",)]
    assert live_run.exit == 0


def test_application_left_alone_when_a_test_variable_names_it(mission: Mission) -> None:
    """A test variable that leads to the application's database is refused, also when it is to be adopted, and nothing is touched."""
    url = mission.variables()[APPLICATION]
    other_spelling = url.replace("127.0.0.1", "localhost").replace("/hangar", "/%68angar")
    assert other_spelling != url
    with mission.connect(APPLICATION) as session:
        before = mission.oids()
        for wrong in (url, other_spelling):
            with mission.changed({TEST: wrong}):
                for command in (("reset",), ("reset", "--adopt", "hangar"), ("test",)):
                    mission.harness(*command).expect(3, TEST, APPLICATION, "the same database 'hangar'")
        assert mission.oids() == before
        assert session.execute("SELECT 1").fetchall() == [(1,)]


def test_application_left_alone_by_the_test_roles(mission: Mission) -> None:
    """PostgreSQL itself refuses a test role at the application's door."""
    for variable in (TEST, E2E):
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            mission.connect(variable, dbname="hangar")
