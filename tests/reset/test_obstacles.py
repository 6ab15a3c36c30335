"""Nothing open can block a reset: sessions, pools, prepared transactions, slots, subscriptions, half-dropped databases."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from harness import obstacles, reset
from harness.clearance import Clearance
from harness.errors import ResetFailed
from tests.builders import SampleRepository, ScratchCluster, assert_fresh, untouched
from tests.reset.inside import Inside, leftovers, state


class Pool:
    """Threads that connect, query and come back at once whatever happens, as an application's pool does."""

    def __init__(self, cluster: ScratchCluster, name: str, size: int = 16) -> None:
        self._cluster, self._name, self._ends = cluster, name, threading.Event()
        self.connected = 0
        self._threads = [threading.Thread(target=self._work) for _ in range(size)]

    def _work(self) -> None:
        import psycopg

        while not self._ends.is_set():
            with suppress(psycopg.Error), self._cluster.connect("dev", self._name, application_name="pool") as connection:
                self.connected += 1
                while not self._ends.is_set():
                    connection.execute("SELECT 1")
                    time.sleep(0.002)

    def __enter__(self) -> Pool:  # noqa: PYI034  # Self came with Python 3.11
        for thread in self._threads:
            thread.start()
        while self.connected < len(self._threads):
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()


def test_a_pool_that_comes_back_at_once_does_not_block_a_reset(
    reset_once: SampleRepository, scratch_cluster: ScratchCluster, rounds: int
) -> None:
    """16 reconnecting threads: the first reset succeeds, every time, and names them."""
    with Pool(scratch_cluster, "shop_test"):
        for _ in range(rounds):
            before = scratch_cluster.oid("shop_test")
            reset_once.run("reset", timeout=30).expect(0, "ended", "pool")
            assert_fresh(scratch_cluster, "shop_test", before=before)
    assert leftovers(reset_once) == []


def test_a_session_that_appears_late_is_ended_and_named(
    reset_once: SampleRepository, scratch_cluster: ScratchCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was just starting when its database was closed, and was not seen then."""
    monkeypatch.setattr(Clearance, "check", lambda *_: False)
    with scratch_cluster.connect("dev", "shop_test", application_name="late"):
        done = Inside(reset_once).reset()
    assert [[session.application for session in one.ended] for one in done] == [["late"], []]


def test_a_session_on_the_new_database_is_told_in_one_line(
    reset_once: SampleRepository, scratch_cluster: ScratchCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who came in while the reset ended is no fault of it, but may spoil the run."""
    inside, last_step = Inside(reset_once), reset._warn_of_sessions

    def slowed(work: reset.Work) -> None:
        with scratch_cluster.connect("dev", "shop_test", application_name="early"), scratch_cluster.connect("su", "shop_test"):
            last_step(work)

    monkeypatch.setattr(reset, "_warn_of_sessions", slowed)
    inside.reset()
    assert inside == ["warning: 2 foreign session(s) are already on the new database 'shop_test': dev (early), su (no application_name)"]


def test_migrations_run_where_no_pool_can_get_between_their_statements(
    reset_once: SampleRepository, scratch_cluster: ScratchCluster
) -> None:
    """The schema is that of a quiet reset although the pool never stopped."""
    reset_once.migration("0002_slow.sql", "CREATE TABLE slow(); SELECT pg_sleep(0.3); ALTER TABLE slow ADD COLUMN v int;")
    with Pool(scratch_cluster, "shop_test"):
        reset_once.run("reset").expect(0)
    assert_fresh(scratch_cluster, "shop_test", tables={"public.item", "public.slow"})


@pytest.mark.parametrize("role", ["su", "other"])
def test_a_session_that_we_may_not_end_is_named(reset_once: SampleRepository, scratch_cluster: ScratchCluster, role: str) -> None:
    """Exit 4; the database is untouched and open, the message has database, pid, user and what mends it."""
    if role == "other":
        scratch_cluster.create_role("other")
    with (
        scratch_cluster.connect(role, "shop_test", application_name="console") as console,
        untouched(scratch_cluster, "shop_test", "shop_e2e"),
    ):
        pid = console.info.backend_pid
        done = reset_once.run("reset").expect(4, "'shop_test'", f"pid {pid}", f"user '{role}'", "'console'")
        advice = "Only a superuser can end it" if role == "su" else 'GRANT pg_signal_backend TO "dev"'
        assert advice in done.stderr
    if role == "other":
        scratch_cluster.execute("GRANT pg_signal_backend TO dev")
        with scratch_cluster.connect(role, "shop_test"):
            reset_once.run("reset").expect(0, "other")
    reset_once.run("reset").expect(0)


@pytest.mark.parametrize("owner", ["dev", "su"])
def test_a_prepared_transaction_is_named_with_the_statement_that_clears_it(
    reset_once: SampleRepository, scratch_cluster: ScratchCluster, owner: str
) -> None:
    """On a server that is not ours nothing is cleared without being asked."""
    with scratch_cluster.connect(owner, "shop_test") as connection:
        connection.execute("BEGIN; CREATE TABLE left1(); PREPARE TRANSACTION 'left1'")
    try:
        with untouched(scratch_cluster, "shop_test", "shop_e2e"):
            reset_once.run("reset", timeout=15).expect(4, "'left1'", "connected to 'shop_test'", "ROLLBACK PREPARED 'left1'")
    finally:
        scratch_cluster.execute("ROLLBACK PREPARED 'left1'", database="shop_test")
    reset_once.run("reset").expect(0)


def test_in_our_own_cluster_a_prepared_transaction_is_rolled_back_with_a_line(
    reset_once: SampleRepository, scratch_cluster: ScratchCluster
) -> None:
    """Nobody can miss it there: only tests ever used the database. A quote in its name is no danger."""
    reset_once.env_file({"MAINTENANCE_DATABASE_URL": scratch_cluster.dsn()})
    with scratch_cluster.connect("su", "shop_test") as connection:
        connection.execute("BEGIN; CREATE TABLE left1(); PREPARE TRANSACTION 'it''s left'")
    inside = Inside(reset_once, own_cluster=True)
    inside.reset()
    assert inside == ["cleared in database 'shop_test': ROLLBACK PREPARED 'it''s left'"]
    assert scratch_cluster.value("SELECT count(*) FROM pg_prepared_xacts") == 0
    assert_fresh(scratch_cluster, "shop_test")


def test_a_subscription_is_named(reset_once: SampleRepository, scratch_cluster: ScratchCluster) -> None:
    """The statements of the message clear it when they are run in its database."""
    scratch_cluster.execute(
        "CREATE SUBSCRIPTION sub1 CONNECTION 'dbname=postgres' PUBLICATION p WITH (connect=false, slot_name=NONE)", database="shop_test"
    )
    with untouched(scratch_cluster, "shop_test", "shop_e2e"):
        done = reset_once.run("reset", timeout=15).expect(4, "subscription 'sub1'", "connected to 'shop_test'")
    for statement in done.stderr.partition("connected to 'shop_test': ")[2].strip().rstrip(".").split("; "):
        scratch_cluster.execute(statement, database="shop_test")
    reset_once.run("reset").expect(0)


@contextmanager
def reader(cluster: ScratchCluster, output: Path) -> Iterator[None]:
    """Keep a logical slot active."""
    program = cluster.binaries / "pg_recvlogical"
    argv = [str(program), "-d", cluster.dsn("su", "shop_test"), "--slot", "s1", "--start", "-f", str(output), "--no-loop"]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while not cluster.value("SELECT count(*) FROM pg_replication_slots WHERE active") and time.monotonic() < deadline:
            time.sleep(0.02)
        yield
    finally:
        process.terminate()
        process.wait(10)


def test_an_active_slot_is_named_and_an_idle_one_goes_along(
    reset_once: SampleRepository, scratch_cluster: ScratchCluster, tmp_path: Path
) -> None:
    """The reader's pid is in the message; without the reader the slot is dropped with the database."""
    if not (scratch_cluster.binaries / "pg_recvlogical").exists():
        pytest.skip("pg_recvlogical is not installed")
    scratch_cluster.execute("SELECT pg_create_logical_replication_slot('s1', 'test_decoding')", database="shop_test")
    with reader(scratch_cluster, tmp_path / "out"), untouched(scratch_cluster, "shop_test", "shop_e2e"):
        pid = scratch_cluster.value("SELECT active_pid FROM pg_replication_slots")
        reset_once.run("reset", timeout=15).expect(4, "slot 's1'", f"pid {pid}", "pg_drop_replication_slot('s1')")
    deadline = time.monotonic() + 10
    while scratch_cluster.value("SELECT count(*) FROM pg_replication_slots WHERE active") and time.monotonic() < deadline:
        time.sleep(0.02)
    reset_once.run("reset").expect(0)
    assert scratch_cluster.value("SELECT count(*) FROM pg_replication_slots") == 0


def interrupted_drop(cluster: ScratchCluster, name: str) -> None:
    """Leave `name` as an interrupted DROP DATABASE leaves it."""
    cluster.execute("UPDATE pg_database SET datconnlimit = -2 WHERE datname = " + f"'{name}'")


@pytest.mark.parametrize("damage", ["invalid", "missing", "closed", "limited"])
def test_a_damaged_target_is_repaired_by_the_next_reset(reset_once: SampleRepository, scratch_cluster: ScratchCluster, damage: str) -> None:
    """Whatever an interrupted drop or a hand left."""
    before = scratch_cluster.oid("shop_test")
    if damage == "invalid":
        interrupted_drop(scratch_cluster, "shop_test")
    elif damage == "missing":
        scratch_cluster.execute("DROP DATABASE shop_test")
    elif damage == "closed":
        scratch_cluster.execute("ALTER DATABASE shop_test ALLOW_CONNECTIONS false")
    else:
        scratch_cluster.execute("ALTER DATABASE shop_test CONNECTION LIMIT 0")
    reset_once.run("reset").expect(0)
    assert_fresh(scratch_cluster, "shop_test", before=before)
    assert leftovers(reset_once) == []


def test_rubble_of_every_kind_is_swept(reset_once: SampleRepository, scratch_cluster: ScratchCluster) -> None:
    """Half-made and half-dropped databases under the derived names go with the next reset."""
    new, old = (Recipes.names(kind) for kind in ("new", "old"))
    for name in (new[0], old[0], new[1], old[1]):
        scratch_cluster.create_database(name, "dev")
    interrupted_drop(scratch_cluster, new[0])
    interrupted_drop(scratch_cluster, old[1])
    scratch_cluster.execute(f"ALTER DATABASE {old[0]} ALLOW_CONNECTIONS false")
    with scratch_cluster.connect("dev", new[1]) as connection:
        connection.execute("BEGIN; CREATE TABLE x(); PREPARE TRANSACTION 'rubble'")
    with scratch_cluster.connect("dev", new[1]):
        reset_once.run("reset").expect(0, "ROLLBACK PREPARED 'rubble'")
    assert leftovers(reset_once) == []
    assert scratch_cluster.value("SELECT count(*) FROM pg_prepared_xacts") == 0


class Recipes:
    """The names beside the two databases."""

    @staticmethod
    def names(kind: str) -> tuple[str, str]:
        """Return those of test and e2e."""
        from harness.targets import name_beside

        return name_beside(kind, "shop_test"), name_beside(kind, "shop_e2e")


def test_another_worktrees_database_under_a_derived_name_is_left_alone(
    reset_once: SampleRepository, scratch_cluster: ScratchCluster
) -> None:
    """A stamp that is not ours is respected wherever it stands."""
    (name, _) = Recipes.names("old")
    scratch_cluster.create_database(name, "dev")
    comment = scratch_cluster.value("SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = 'shop_test'")
    foreign = comment.replace(str(reset_once.root.resolve()), "/elsewhere").replace("'", "''")
    scratch_cluster.execute(f"COMMENT ON DATABASE {name} IS '{foreign}'")
    with untouched(scratch_cluster, "shop_test", name):
        reset_once.run("reset").expect(3, name, "another worktree's stamp")


def test_autovacuum_at_work_does_not_fail_an_ordinary_role(tmp_path: Path) -> None:
    """The plain drop sends the worker away, where WITH (FORCE) would be refused to a role that is no superuser."""
    with ScratchCluster(autovacuum_naptime="1s", autovacuum_vacuum_cost_delay="100ms", autovacuum_vacuum_cost_limit="1") as cluster:
        repository = SampleRepository(tmp_path / "shop", cluster)
        repository.run("reset").expect(0)
        with cluster.connect("dev", "shop_test") as connection:
            connection.execute("CREATE TABLE big AS SELECT i, repeat('x', 500) t FROM generate_series(1, 20000) i; DELETE FROM big")
        wait_for_autovacuum(cluster)
        repository.run("reset").expect(0)
        assert_fresh(cluster, "shop_test")


def wait_for_autovacuum(cluster: ScratchCluster) -> None:
    """Wait until a worker is in the test database."""
    deadline = time.monotonic() + 30
    query = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'autovacuum worker' AND datname = 'shop_test'"
    while not cluster.value(query):
        assert time.monotonic() < deadline, "no autovacuum worker came"
        time.sleep(0.02)


LEFT_BEHIND = {
    "prepared": "-- harness: no-transaction\nBEGIN;\nCREATE TABLE t();\nPREPARE TRANSACTION 'from_migration';",
    "subscription": "CREATE SUBSCRIPTION s CONNECTION 'dbname=postgres' PUBLICATION p WITH (connect=false, slot_name=NONE);",
}


@pytest.mark.parametrize("left", LEFT_BEHIND)
def test_migrations_that_leave_what_no_copy_has_are_refused(
    reset_once: SampleRepository, scratch_cluster: ScratchCluster, left: str
) -> None:
    """Such a database could not be dropped again; the previous one stays, and the half-made one goes."""
    reset_once.settings(reset_once.root.joinpath("harness.toml").read_text().replace('core"\n\n', 'core"\nas = "maintenance"\n\n'))
    reset_once.env_file({"MAINTENANCE_DATABASE_URL": scratch_cluster.dsn()})
    reset_once.migration("0002_left.sql", LEFT_BEHIND[left])
    before = state(reset_once)
    reset_once.run("reset", "--database", "test").expect(4, f"leave behind the {left} '", "Let the application or a test make it")
    assert state(reset_once) == before
    assert scratch_cluster.value("SELECT count(*) FROM pg_subscription") == 0
    assert scratch_cluster.value("SELECT count(*) FROM pg_prepared_xacts") == 0


def test_a_session_that_does_not_end_is_named(scratch_cluster: ScratchCluster, sample_repository: SampleRepository) -> None:
    """The wait is bounded, and its message has the pid."""
    assert sample_repository.cluster is scratch_cluster
    with (
        scratch_cluster.connect("dev", "shop") as connection,
        scratch_cluster.connect("dev") as ours,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(obstacles, "QUIET_TIMEOUT", 0.2)
        patch.setattr(obstacles, "_END", obstacles._END.replace("pg_terminate_backend(a.pid)", "true"))
        with pytest.raises(ResetFailed, match=f"pid {connection.info.backend_pid}, user 'dev'.* does not end"):
            obstacles.quiet(ours, [scratch_cluster.oid("shop") or 0])
