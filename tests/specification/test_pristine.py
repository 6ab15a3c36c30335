"""Scenarios 5, 6, 7 and 9: every run starts from the migrations alone, nothing is remembered, and nothing keeps a reset from it."""

from __future__ import annotations

import os
import py_compile
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from tests.specification.conftest import Ran
from tests.specification.contents import by_psql, contents, differences
from tests.specification.mission import E2E, PREFIX, TEST, Mission, outcomes, wait_until

ORGS = PREFIX + "orgs"
ANSWER_TEST = '''\
"""What a test finds in a module of the project."""

from tests.mission_control.orgs.answer import ANSWER


def test_answer():
    """The answer is the one in the source."""
    assert ANSWER == 2


def test_neighbour():
    """There is another test."""
'''
POLLUTION = """
INSERT INTO platform.org_types VALUES ('guild', 'Guild');
UPDATE billing.plans SET monthly_cents = 1 WHERE code = 'orbital';
DELETE FROM platform.provider_group_mappings;
SELECT nextval('platform.placement_numbers'), nextval(pg_get_serial_sequence('platform.organisations', 'id'));
CREATE SCHEMA left_behind CREATE TABLE rows (id int);
CREATE FUNCTION platform.left_behind() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE TYPE billing.left_behind AS ENUM ('a');
CREATE OR REPLACE VIEW platform.orphaned_placements AS SELECT id, reference FROM platform.placements;
ALTER TABLE platform.domains ADD COLUMN left_behind int;
DROP TRIGGER organisations_touch_updated_at ON platform.organisations;
CREATE EXTENSION pg_trgm;
"""


@contextmanager
def answering(mission: Mission) -> Iterator[Path]:
    """Add a test and the module it imports to the package orgs, their bytecode written; and take everything away again."""
    module, test = mission.root / ORGS / "answer.py", mission.root / ORGS / "test_answer.py"
    module.write_text("ANSWER = 1\n")
    test.write_text(ANSWER_TEST)
    py_compile.compile(str(module), str(module.parent / "__pycache__" / f"answer.{sys.implementation.cache_tag}.pyc"))
    try:
        yield module
    finally:
        for path in (module, test):
            path.unlink()
        mission.forget()


def test_reset_invalidates_cached_results(mission: Mission) -> None:
    """After a reset and no change of the source every test is executed again; no bytecode and no cache is written."""
    mission.forget()
    executed = []
    for _ in range(2):
        mission.harness("test", "--package", ORGS, env=mission.watch()).expect(0)
        (seen,) = mission.observed()
        executed.append(seen.executed)
    assert len(executed[0]) > 5
    assert executed[0] == executed[1]
    assert mission.caches() == []


def test_reset_invalidates_cached_results_of_pytest(mission: Mission) -> None:
    """Where the project's settings run only what failed last time, plain pytest leaves tests out, and the harness runs all of them."""
    pyproject = mission.root / "pyproject.toml"
    before = pyproject.read_text()
    with answering(mission):
        mission.pytest(ORGS).expect(1, "test_answer")
        pyproject.write_text(before.replace('"-ra",', '"-ra", "--lf",'))
        try:
            mission.pytest(ORGS).expect(1, "1 failed")
            package = mission.document("test", "--package", ORGS, code=1)["packages"][0]
        finally:
            pyproject.write_text(before)
    assert len(package["tests"]) > 10
    assert [test["id"].rpartition("::")[2] for test in package["tests"] if test["outcome"] != "passed"] == ["test_answer"]


def test_reset_invalidates_stale_bytecode(mission: Mission) -> None:
    """A module edited within the second and to the same size is run as it is now; plain pytest runs what it was: the trap is real."""
    with answering(mission) as module:
        before = module.stat()
        module.write_text("ANSWER = 2\n")
        os.utime(module, ns=(before.st_atime_ns, before.st_mtime_ns))
        mission.pytest(ORGS, "-k", "answer").expect(1, "assert 1 == 2")
        mission.harness("test", "--package", ORGS).expect(0)


def test_every_run_starts_from_migrations_only(mission: Mission) -> None:
    """After a polluted run a reset leaves, object by object and row by row, what `psql -f` makes; from the template and from zero."""
    expected = {variable: contents(mission, by_psql(mission, f"by_psql_{role}", role)) for variable, role in ROLES.items()}
    mission.harness("reset").expect(0)
    for source, arguments in (("template", ()), ("migrated", ("--fresh",))):
        for variable in ROLES:
            pollute(mission, variable)
            assert len(differences(contents(mission, mission.variables()[variable]), expected[variable])) > 10
        document = mission.document("reset", *arguments)
        assert [database["source"] for database in document["databases"]] == [source] * 2
        for variable in ROLES:
            assert differences(contents(mission, mission.variables()[variable]), expected[variable]) == []
    for role in ROLES.values():
        mission.ask(f"DROP DATABASE by_psql_{role}")


ROLES = {TEST: "hangar_test", E2E: "hangar_e2e"}


def pollute(mission: Mission, variable: str) -> None:
    """Leave behind what suites leave behind, and more."""
    with mission.connect(variable) as connection:
        name = connection.info.dbname
        connection.execute(POLLUTION.encode())
        connection.execute(f"ALTER DATABASE {name} SET search_path TO left_behind; COMMENT ON SCHEMA billing IS 'left behind'".encode())


def test_full_suite_twice_in_a_row(mission: Mission, first_run: Ran) -> None:
    """Run again, the suite has the same outcomes test by test, and nothing trips over what the first run committed."""
    second = mission.document("test", "--e2e")
    assert outcomes(second) == outcomes(first_run.document)
    assert len(outcomes(second)) > 40
    reasons = [test["reason"] for package in second["packages"] for test in package["tests"] if test["reason"]]
    assert reasons == []


def test_open_connections_do_not_block(mission: Mission) -> None:
    """An idle session, one within a transaction that holds locks, and a pool that reconnects all the time: the reset ends and names them."""
    mission.harness("reset", "--database", "test").expect(0)
    before = mission.oids()["hangar_test"]
    with mission.connect(TEST, application_name="idle console") as idle, mission.connect(TEST, application_name="open transaction") as busy:
        busy.execute("BEGIN; LOCK TABLE platform.organisations; INSERT INTO platform.org_types VALUES ('guild', 'Guild')")
        with Pool(mission.variables()[TEST], size=3) as pool:
            wait_until(lambda: pool.connected > 10)
            document = mission.document("reset", "--database", "test")
            connected = pool.connected
            wait_until(lambda: pool.connected > connected + 10)
        for session in (idle, busy):
            with pytest.raises(psycopg.OperationalError):
                session.execute("SELECT 1")
    (database,) = document["databases"]
    assert {"idle console", "open transaction"} <= {session["application"] for session in database["ended"]}
    assert database["ms"] < 15_000
    assert mission.oids()["hangar_test"] != before
    assert mission.ask("SELECT 1 FROM platform.org_types WHERE code = 'guild'", TEST) == []


class Pool:
    """Threads that keep a connection each, and connect again at once when they lose it."""

    def __init__(self, url: str, *, size: int) -> None:
        self.url, self.connected = url, 0
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._keep, daemon=True) for _ in range(size)]

    def __enter__(self) -> Pool:  # noqa: PYI034  # Self came with Python 3.11
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(30)

    def _keep(self) -> None:
        while not self._over.is_set():
            with (
                suppress(psycopg.Error),
                psycopg.connect(self.url, autocommit=True, connect_timeout=10, application_name="pool") as connection,
            ):
                while not self._over.is_set():
                    connection.execute("SELECT 1")
                    self.connected += 1
                    self._over.wait(0.001)
