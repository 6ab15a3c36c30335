"""The tests' own tools: clusters end, sentinels see, samples run in an environment of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.builders import HARNESS_ROOT, SampleRepository, ScratchCluster, Sentinel, assert_fresh, untouched
from tests.scratch import records_folder, start_time, sweep


def test_a_scratch_cluster_has_a_port_of_the_tests_range(scratch_cluster: ScratchCluster) -> None:
    """The net lets a package's own cluster through, and the server that answers is the one that was started."""
    with psycopg.connect(scratch_cluster.dsn()) as connection:
        row = connection.execute("SELECT current_setting('port')::int, current_setting('data_directory')").fetchone()
    assert row == (scratch_cluster.port, str(scratch_cluster.data.resolve()))
    assert 18000 <= scratch_cluster.port < 19000


def test_the_server_does_not_run_as_root(scratch_cluster: ScratchCluster) -> None:
    """PostgreSQL refuses root, and a test's server is no exception."""
    status = Path(f"/proc/{scratch_cluster.pid}/status")
    if not status.exists():
        pytest.skip("no /proc here")
    mapped = Path(f"/proc/{scratch_cluster.pid}/uid_map").read_text().split()
    uid = next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("Uid:"))
    assert uid != "0" or mapped[0] != "0"


def test_a_cluster_leaves_nothing() -> None:
    """On leaving the context server, folder and record are gone."""
    with ScratchCluster(wal_level="logical") as cluster:
        pid, folder = cluster.pid, cluster.folder
        assert cluster.value("SHOW wal_level") == "logical"
        assert start_time(pid) != ""
    assert start_time(pid) == ""
    assert not folder.exists()
    assert not list(records_folder().glob(f"*{folder.name}*"))


def test_two_clusters_have_two_ports_and_a_restart_keeps_its_own() -> None:
    """Ports are leased with a lock, then bound."""
    with ScratchCluster() as one, ScratchCluster(auth="trust") as other:
        port = one.port
        assert port != other.port
        one.stop()
        one.start(jit="off")
        assert (one.port, one.value("SHOW jit")) == (port, "off")


def test_a_standby_is_in_recovery() -> None:
    """Cases about standbys need one."""
    with ScratchCluster() as primary, primary.standby() as standby:
        assert (primary.value("SELECT pg_is_in_recovery()"), standby.value("SELECT pg_is_in_recovery()")) == (False, True)


def test_the_sweep_ends_what_a_killed_test_process_left() -> None:
    """The next process ends the server of a dead owner, and nobody else's."""
    code = "import os, signal\nfrom tests.scratch import ScratchCluster\ncluster = ScratchCluster().__enter__()\n"
    code += "print(cluster.pid, cluster.folder, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    with ScratchCluster() as mine:
        done = subprocess.run([sys.executable, "-c", code], cwd=HARNESS_ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == -9, done.stderr
        pid, _, folder = done.stdout.strip().partition(" ")
        assert Path(folder).exists()
        sweep()
        assert start_time(int(pid)) == ""
        assert not Path(folder).exists()
        assert mine.value("SELECT 1") == 1


@pytest.mark.parametrize(
    "harm",
    [
        "DELETE FROM keep",
        "CREATE TABLE more()",
        "CREATE ROLE intruder",
        "ALTER DATABASE shop SET work_mem = '1MB'",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'app-sentinel'",
    ],
)
def test_the_sentinel_sees_each_kind_of_harm(harm: str, sample_repository: SampleRepository) -> None:
    """Row, objects, roles, settings and the session itself."""
    cluster = sample_repository.cluster
    assert cluster is not None
    with pytest.raises((AssertionError, psycopg.OperationalError)), Sentinel(cluster):
        cluster.execute(harm, database="shop")


def test_the_sentinel_is_content_when_nothing_happened(sample_repository: SampleRepository) -> None:
    """Other databases may come and go."""
    cluster = sample_repository.cluster
    assert cluster is not None
    with Sentinel(cluster):
        cluster.create_database("shop_test", "dev")


def test_fresh_and_untouched_exclude_each_other(sample_repository: SampleRepository) -> None:
    """A dropped and recreated database is fresh and not untouched."""
    cluster = sample_repository.cluster
    assert cluster is not None
    before = cluster.create_database("shop_test", "dev")
    with untouched(cluster, "shop_test"), pytest.raises(AssertionError, match="still the old database"):
        assert_fresh(cluster, "shop_test", before=before, tables=set())
    guard = untouched(cluster, "shop_test")
    guard.__enter__()
    cluster.execute("DROP DATABASE shop_test")
    cluster.create_database("shop_test", "dev")
    with pytest.raises(AssertionError):
        guard.__exit__(None, None, None)
    assert_fresh(cluster, "shop_test", before=before, tables=set())


def test_a_sample_runs_in_an_environment_of_its_own(sample_repository: SampleRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    """No DSN, no HARNESS_* but its own state folder, no PG*, no CI, no activated environment."""
    for name in ("CI", "PGHOST", "VIRTUAL_ENV", "PYTEST_ADDOPTS", "GIT_DIR", "HARNESS_ROOT"):
        monkeypatch.setenv(name, "x")
    environment = sample_repository.environment()
    assert set(environment) <= {"PATH", "LD_LIBRARY_PATH", "TMPDIR", "HOME", "LANG", "PYTHONPATH", "HARNESS_STATE_DIR"}
    assert environment["HARNESS_STATE_DIR"] != os.environ["HARNESS_STATE_DIR"]


def test_the_samples_first_reset_and_run_are_green(sample_repository: SampleRepository) -> None:
    """The sample is whole: real `inv` resets it and runs both packages."""
    cluster = sample_repository.cluster
    assert cluster is not None
    with Sentinel(cluster):
        sample_repository.run("reset").expect(0)
        assert_fresh(cluster, "shop_test")
        assert_fresh(cluster, "shop_e2e")
        sample_repository.run("test", "--e2e").expect(0)
