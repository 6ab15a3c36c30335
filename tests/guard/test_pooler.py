"""DB-07: a connection pooler in front is refused with the reason, and holds no lock and no setting of ours afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.builders import SampleRepository, ScratchCluster, Sentinel, untouched
from tests.guard.conftest import verdict

PORT_OFFSET = 10_000
"""What is added to the cluster's own port, which is leased: two pools never meet either, nor a port that the system hands out."""


class Pooler:
    """A pgbouncer in front of a cluster, ended by its own pid."""

    def __init__(self, program: str, cluster: ScratchCluster, folder: Path, mode: str, databases: str) -> None:
        self.port = cluster.port + PORT_OFFSET
        users = folder / "users"
        users.write_text("".join(f'"{name}" "{cluster.passwords[name]}"\n' for name in ("dev", "su")))
        settings = f"{databases}\n[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port={self.port}\nunix_socket_dir=\npool_mode={mode}\n"
        settings += f"auth_type=scram-sha-256\nauth_file={users}\nadmin_users=su\nlogfile={folder / 'log'}\n"
        (folder / "ini").write_text(settings)
        options = {}
        if os.geteuid() == 0:  # pgbouncer refuses root, as the server does
            account = pwd.getpwnam("nobody")
            for path in (folder, folder / "ini", users):
                os.chown(path, account.pw_uid, account.pw_gid)
            options = {"user": account.pw_uid, "group": account.pw_gid}
        self.process = subprocess.Popen(
            [program, "-q", str(folder / "ini")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            **options,  # type: ignore[call-overload]  # user and group, or nothing
        )

    def dsn(self, cluster: ScratchCluster, role: str, name: str) -> str:
        """Return a URL through the pool."""
        return cluster.dsn(role, name).replace(f":{cluster.port}/", f":{self.port}/")

    def wait(self, cluster: ScratchCluster) -> None:
        """Wait until the pool answers."""
        deadline = time.monotonic() + 10
        while True:
            try:
                psycopg.connect(self.dsn(cluster, "dev", "shop"), connect_timeout=2).close()
            except psycopg.Error:
                assert time.monotonic() < deadline, "pgbouncer does not answer"
                time.sleep(0.05)
            else:
                return

    def end(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(10)


@pytest.fixture(params=["transaction", "session"])
def pool(request: pytest.FixtureRequest, sample_repository: SampleRepository) -> Iterator[tuple[SampleRepository, ScratchCluster, Pooler]]:
    """Run a pool over a cluster whose repository was reset once; `alias` in it leads to the application's database."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed: apt-get install pgbouncer")
    cluster = sample_repository.cluster
    assert cluster is not None
    sample_repository.run("reset").expect(0)
    folder = cluster.folder / f"pool-{request.param}"
    folder.mkdir()
    databases = f"[databases]\nalias = host=127.0.0.1 port={cluster.port} dbname=shop\n* = host=127.0.0.1 port={cluster.port}\n"
    found = Pooler(program, cluster, folder, request.param, databases)
    try:
        found.wait(cluster)
        yield sample_repository, cluster, found
    finally:
        found.end()
        shutil.rmtree(folder)


def through(pool: Pooler, repository: SampleRepository, cluster: ScratchCluster, names: Mapping[str, str]) -> None:
    """Write test/.env with these variables through the pool."""
    assert urlsplit(repository.dsn("MC_DB_DSN")).port == cluster.port
    repository.env_file({variable: pool.dsn(cluster, "dev", name) for variable, name in names.items()})


def test_everything_through_a_pooler(pool: tuple[SampleRepository, ScratchCluster, Pooler]) -> None:
    """Refused, naming the variable that takes a direct DSN; no lock stays, and the next client finds the server's own settings."""
    repository, cluster, pooler = pool
    own = cluster.value("SELECT setting FROM pg_settings WHERE name = 'statement_timeout'", role="dev")
    with Sentinel(cluster):
        psycopg.connect(pooler.dsn(cluster, "dev", "shop_test")).close()
        names = {
            "TEST_DATABASE_URL": "shop_test",
            "E2E_DATABASE_URL": "shop_e2e",
            "MC_DB_DSN": "shop",
            "MAINTENANCE_DATABASE_URL": "postgres",
        }
        through(pooler, repository, cluster, names)
        before = [cluster.oid(name) for name in cluster.databases()]
        for command in ("reset", "reset", "test"):
            repository.run(command).expect(3, "MAINTENANCE_DATABASE_URL", "pooled connections are not supported", "test/.env")
        assert [cluster.oid(name) for name in cluster.databases()] == before
        assert cluster.execute("SELECT FROM pg_locks WHERE locktype = 'advisory'") == []
        for name in ("postgres", "shop_test"):
            with psycopg.connect(pooler.dsn(cluster, "dev", name)) as client:
                found = client.execute("SELECT setting FROM pg_settings WHERE name = 'statement_timeout'").fetchone()
            assert found == (own,)


def test_a_test_database_through_a_pooler(pool: tuple[SampleRepository, ScratchCluster, Pooler]) -> None:
    """The same where only the test database's DSN is pooled: before anything is touched, not in the middle."""
    repository, cluster, pooler = pool
    through(pooler, repository, cluster, {"TEST_DATABASE_URL": "shop_test"})
    with untouched(cluster, "shop", "shop_e2e"):
        oid = cluster.oid("shop_test")
        verdict(repository).expect(3, "TEST_DATABASE_URL", "pooled connections are not supported")
        assert cluster.oid("shop_test") == oid


def test_an_alias_of_the_application(pool: tuple[SampleRepository, ScratchCluster, Pooler]) -> None:
    """A pooler's name for the application's database is that database, whatever the name."""
    repository, cluster, pooler = pool
    with Sentinel(cluster):
        through(pooler, repository, cluster, {"MC_DB_DSN": "alias"})
        repository.run("reset").expect(0)
        cluster.execute("ALTER DATABASE shop_e2e RENAME TO alias")
        try:
            repository.env_file({"TEST_DATABASE_URL": pooler.dsn(cluster, "dev", "alias"), "E2E_DATABASE_URL": cluster.dsn("dev", "other")})
            verdict(repository).expect(3, "TEST_DATABASE_URL", "MC_DB_DSN", "the same database 'shop'")
        finally:
            cluster.execute("ALTER DATABASE alias RENAME TO shop_e2e")
        changes = {"MC_DB_DSN": pooler.dsn(cluster, "dev", "alias"), "TEST_DATABASE_URL": cluster.dsn("dev", "shop")}
        repository.env_file(changes)
        verdict(repository).expect(3, "TEST_DATABASE_URL", "MC_DB_DSN", "the same database")
