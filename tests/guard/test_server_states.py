"""DB-06: a role's own settings, a standby, a server that is starting, and one that is not there."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import database
from harness.errors import ResetFailed, StackFailure
from harness.targets import parse_dsn
from tests.builders import SampleRepository, ScratchCluster, Sentinel, assert_fresh, untouched

ROLE_SETTINGS = {
    "default_transaction_read_only": "on",
    "statement_timeout": "50ms",
    "lock_timeout": "50ms",
    "idle_in_transaction_session_timeout": "200ms",
    "idle_session_timeout": "200ms",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "client_encoding": "LATIN1",
    "standard_conforming_strings": "off",
    "client_min_messages": "error",
    "datestyle": "German, DMY",
}
SLOW = "SELECT pg_sleep(0.4);\nCREATE TABLE name(it text);\nINSERT INTO name VALUES ('тест''é');\n"
SHOWS = """\
import pytest

@pytest.mark.parametrize(("name", "value"), {wanted!r})
def test_settings(test_connection, name, value):
    assert test_connection.execute("SHOW " + name).fetchone() == (value,)
"""


def shows(repository: SampleRepository, wanted: dict[str, str]) -> None:
    """Make the test package see these settings, or fail."""
    repository.package("tests/orders", SHOWS.format(wanted=list(wanted.items())), name="test_orders.py")


def available(cluster: ScratchCluster) -> dict[str, str]:
    """Return the settings that this server knows: some came with later versions."""
    known = {name for (name,) in cluster.execute("SELECT name FROM pg_settings")}
    return {name: value for name, value in ROLE_SETTINGS.items() if name in known}


def test_a_roles_own_settings(sample_repository: SampleRepository) -> None:
    """They stop no reset, cold or warm, and a test still sees them: only our own sessions override them."""
    repository, cluster = sample_repository, sample_repository.cluster
    assert cluster is not None
    wanted = available(cluster)
    repository.migration("0002_slow.sql", SLOW)
    shows(repository, wanted)
    with Sentinel(cluster):
        cluster.execute("; ".join(f"ALTER ROLE dev SET {name} = '{value}'" for name, value in wanted.items()))
        for command in ("reset", "reset", "test"):
            before = cluster.oid("shop_test")
            repository.run(command).expect(0)
            assert_fresh(cluster, "shop_test", before=before, tables={"public.item", "public.name"})
        assert cluster.value("SELECT it FROM name", database="shop_test") == "тест'é"


@pytest.mark.parametrize("name", ["default_transaction_read_only", "statement_timeout", "idle_in_transaction_session_timeout"])
def test_one_setting_by_itself(sample_repository: SampleRepository, name: str) -> None:
    """Each alone, so that none hides another."""
    repository, cluster = sample_repository, sample_repository.cluster
    assert cluster is not None
    repository.migration("0002_slow.sql", SLOW)
    with Sentinel(cluster):
        cluster.execute(f"ALTER ROLE dev SET {name} = '{ROLE_SETTINGS[name]}'")
        repository.run("reset").expect(0)
        assert_fresh(cluster, "shop_test", tables={"public.item", "public.name"})


def test_a_broken_stream_is_told_though_the_server_is_silent(sample_repository: SampleRepository) -> None:
    """Sessions are opened while the files are read: a finding about those does not wait for a server that takes connections and says nothing."""
    repository, cluster = sample_repository, sample_repository.cluster
    assert cluster is not None
    repository.migration("0002_zero.sql", "SELECT 1\0")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        elsewhere = (repository.root / "test/.env").read_text().replace(f":{cluster.port}/", f":{silent.getsockname()[1]}/")
        repository.write("test/.env", elsewhere)
        done = repository.run("reset", timeout=database.CONNECT_TIMEOUT - 1).expect(2)
    assert "0002_zero.sql has a zero byte" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_roles_search_path_is_the_migrations(sample_repository: SampleRepository) -> None:
    """Where the role's own path leads nowhere, a migration says so, and one that names its schema goes through."""
    repository, cluster = sample_repository, sample_repository.cluster
    assert cluster is not None
    with Sentinel(cluster):
        cluster.execute("ALTER ROLE dev SET search_path = 'elsewhere'")
        repository.run("reset").expect(4, "0001_base.sql", "3F000")
        repository.migration("0001_base.sql", "CREATE TABLE public.item(id int PRIMARY KEY);\n")
        repository.run("reset").expect(0)
        assert_fresh(cluster, "shop_test")


def test_the_maintenance_databases_own_settings(sample_repository: SampleRepository) -> None:
    """The same from ALTER DATABASE, of the maintenance database."""
    repository, cluster = sample_repository, sample_repository.cluster
    assert cluster is not None
    names = [name for name in available(cluster) if name != "client_encoding"]
    cluster.execute("; ".join(f"ALTER DATABASE postgres SET {name} = '{ROLE_SETTINGS[name]}'" for name in names))
    try:
        for _ in range(2):
            repository.run("reset").expect(0)
    finally:
        with cluster.connect() as connection:
            connection.execute("SET default_transaction_read_only = off; SET statement_timeout = 0")
            connection.execute("ALTER DATABASE postgres RESET ALL")


def test_the_shells_options(sample_repository: SampleRepository) -> None:
    """PGOPTIONS and its kin in the shell change neither the reset nor the tests."""
    repository, cluster = sample_repository, sample_repository.cluster
    assert cluster is not None
    shows(repository, {"default_transaction_read_only": "off", "client_encoding": "UTF8"})
    shell = {"PGOPTIONS": "-c default_transaction_read_only=on", "PGCLIENTENCODING": "LATIN1", "PGAPPNAME": "x", "PGCONNECT_TIMEOUT": "1"}
    with Sentinel(cluster):
        repository.run("reset", env=shell).expect(0)
        repository.run("test", env=shell).expect(0)


def test_options_of_the_dsn_are_the_tests(sample_repository: SampleRepository) -> None:
    """What the DSN itself sets stops no reset, and is there for the tests."""
    repository, cluster = sample_repository, sample_repository.cluster
    assert cluster is not None
    options = "-c default_transaction_read_only=on -c statement_timeout=50"
    repository.env_file({"TEST_DATABASE_URL": cluster.dsn("dev", "shop_test", options=options, application_name="the shop's tests")})
    repository.migration("0002_slow.sql", SLOW)
    shows(repository, {"statement_timeout": "50ms", "default_transaction_read_only": "on", "application_name": "the shop's tests"})
    with Sentinel(cluster):
        repository.run("reset").expect(0)
        repository.run("test").expect(0)


def test_a_standby(sample_repository: SampleRepository) -> None:
    """DSNs of a hot standby, of which the primary's databases are a copy: refused, and nothing dropped on either."""
    repository, cluster = sample_repository, sample_repository.cluster
    assert cluster is not None
    repository.run("reset").expect(0)
    with Sentinel(cluster), cluster.standby() as standby:
        standby_dsns = {variable: repository.dsn(variable).replace(f":{cluster.port}/", f":{standby.port}/") for variable in _ALL}
        with untouched(cluster, "shop", "shop_test", "shop_e2e"):
            repository.env_file(standby_dsns)
            repository.run("reset").expect(3, "MAINTENANCE_DATABASE_URL", "standby")
            repository.env_file({"TEST_DATABASE_URL": standby_dsns["TEST_DATABASE_URL"]})
            repository.run("reset").expect(3, "TEST_DATABASE_URL", "standby")
            # The application's DSN is the standby's, the test one opens the primary of it.
            changes = {"MC_DB_DSN": standby_dsns["MC_DB_DSN"], "TEST_DATABASE_URL": repository.dsn("MC_DB_DSN")}
            repository.env_file(changes)
            repository.run("reset").expect(3, "TEST_DATABASE_URL", "MC_DB_DSN", "the same database 'shop'")
        repository.env_file({"MC_DB_DSN": standby_dsns["MC_DB_DSN"]})
        repository.run("reset").expect(0)


_ALL = ("MC_DB_DSN", "TEST_DATABASE_URL", "E2E_DATABASE_URL", "MAINTENANCE_DATABASE_URL")


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[SampleRepository]:
    """Return a repository whose server answers "not yet accepting connections" until it is promoted."""
    with ScratchCluster() as cluster:
        repository = SampleRepository(tmp_path / "shop", cluster)
        repository.run("reset").expect(0)
        cluster.stop()
        signal = cluster.data / "standby.signal"
        signal.touch()
        signal.chmod(0o666)
        os.chown(signal, cluster.data.stat().st_uid, cluster.data.stat().st_gid)
        cluster.start(hot_standby="off")
        yield repository


def test_a_server_that_is_starting(starting: SampleRepository) -> None:
    """While the server says that it is starting up (57P03) the reset waits, and then goes through."""
    assert starting.cluster is not None
    with starting.start("reset") as process:
        time.sleep(2.5)
        assert process.poll() is None, process.communicate()
        starting.cluster.command(str(starting.cluster.binaries / "pg_ctl"), "promote", "-D", str(starting.cluster.data))
        output, errors = process.communicate(timeout=40)
    assert process.returncode == 0, errors
    assert "'shop_test' is pristine" in output


def test_a_server_that_never_finishes_starting(starting: SampleRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the limit: exit 4, with the server's own words."""
    monkeypatch.setattr(database, "STARTUP_TIMEOUT", 0.3)
    dsn = parse_dsn("MAINTENANCE_DATABASE_URL", starting.dsn("MAINTENANCE_DATABASE_URL"))
    with pytest.raises(ResetFailed, match=r"MAINTENANCE_DATABASE_URL .*not (yet )?accepting connections"):
        database.connect(dsn, purpose="test")


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    """Nobody listens: exit 5 naming the variable and the place, at once."""
    with ScratchCluster() as cluster:
        repository = SampleRepository(tmp_path / "shop", cluster)
    begin = time.monotonic()
    repository.run("reset").expect(5, "no server answers for MAINTENANCE_DATABASE_URL", f"127.0.0.1:{cluster.port}/postgres")
    assert time.monotonic() - begin < 10


def test_a_server_that_accepts_and_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener without a word is given up after the connection's time-out, and not asked again."""
    monkeypatch.setattr(database, "CONNECT_TIMEOUT", 2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dsn = parse_dsn("MC_DB_DSN", f"postgresql://dev@127.0.0.1:{listener.getsockname()[1]}/shop")
        begin = time.monotonic()
        with pytest.raises(StackFailure, match="no server answers for MC_DB_DSN"):
            database.identify(dsn)
    assert time.monotonic() - begin < 3.5
