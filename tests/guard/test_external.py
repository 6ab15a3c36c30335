"""An ordinary CREATEDB role on somebody's server: each missing right is named, with the grant that mends it (DB-02)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.builders import SampleRepository, ScratchCluster, Sentinel, assert_fresh, untouched

DATABASES = ("shop", "shop_test", "shop_e2e")


@pytest.fixture
def standing_alone(sample_repository: SampleRepository) -> Iterator[tuple[SampleRepository, ScratchCluster]]:
    """Return a repository that was reset once, by a role that may create databases and nothing more, and its cluster."""
    assert sample_repository.cluster is not None
    sample_repository.run("reset").expect(0)
    with Sentinel(sample_repository.cluster, roles=frozenset({"other", "owner", "login"})):
        yield sample_repository, sample_repository.cluster


def mended(cluster: ScratchCluster, output: str) -> None:
    """Run, as a superuser, what the message says."""
    statement = output.partition("As a superuser: ")[2].partition("; or ")[0].rstrip(".\n")
    assert statement, output
    cluster.execute(statement)


def test_an_ordinary_role_is_enough(standing_alone: tuple[SampleRepository, ScratchCluster]) -> None:
    """CREATEDB and nothing else: reset warm, cold and tested; no role and no right is changed on somebody's server."""
    repository, cluster = standing_alone
    rights = "SELECT datname, datacl::text FROM pg_database WHERE datname IN ('postgres', 'template1', 'shop') ORDER BY 1"
    roles = "SELECT to_jsonb(r) FROM pg_roles r WHERE rolname !~ '^pg_' ORDER BY 1"
    found = cluster.execute(rights), cluster.execute(roles)
    repository.run("reset").expect(0)
    repository.run("reset", "--fresh").expect(0)
    repository.run("test", "--e2e").expect(0)
    assert (cluster.execute(rights), cluster.execute(roles)) == found


def test_a_role_that_may_not_create_databases(standing_alone: tuple[SampleRepository, ScratchCluster]) -> None:
    """Without CREATEDB nothing is dropped; the message has the role, the right and the grant, and the grant helps."""
    repository, cluster = standing_alone
    cluster.execute("ALTER ROLE dev NOCREATEDB")
    with untouched(cluster, *DATABASES):
        done = repository.run("reset").expect(3, "'dev'", "may not create databases", "CREATEDB")
    before = cluster.oid("shop_test")
    mended(cluster, done.stderr)
    repository.run("reset").expect(0)
    assert_fresh(cluster, "shop_test", before=before)


@pytest.mark.parametrize("owner", ["su", "other"])
def test_somebody_elses_database(standing_alone: tuple[SampleRepository, ScratchCluster], owner: str) -> None:
    """Another owner: the message has his name, both databases stay, and the statement it gives helps."""
    repository, cluster = standing_alone
    if owner == "other":
        cluster.create_role("other", "LOGIN")
    cluster.execute(f"ALTER DATABASE shop_test OWNER TO {owner}")
    with untouched(cluster, *DATABASES):
        done = repository.run("reset").expect(3, "'shop_test'", repr(owner), "OWNER TO")
    before = cluster.oid("shop_test")
    mended(cluster, done.stderr)
    repository.run("reset").expect(0)
    assert_fresh(cluster, "shop_test", before=before)


def test_a_role_for_the_test_database_that_is_not_there(standing_alone: tuple[SampleRepository, ScratchCluster]) -> None:
    """TEST_DATABASE_URL names a role that nobody made."""
    repository, cluster = standing_alone
    url = repository.dsn("TEST_DATABASE_URL").replace("//dev:dev-secret-9041@", "//login:login-secret-9041@")
    repository.env_file({"TEST_DATABASE_URL": url})
    with untouched(cluster, *DATABASES):
        repository.run("reset").expect(3, "'login'", "does not exist", 'CREATE ROLE "login" LOGIN')


def test_a_role_for_the_test_database_that_ours_may_not_become(standing_alone: tuple[SampleRepository, ScratchCluster]) -> None:
    """The test database's own role is another one: a database may be made for it by its members only."""
    repository, cluster = standing_alone
    cluster.create_role("login", "LOGIN")
    repository.env_file({"TEST_DATABASE_URL": cluster.dsn("login", "shop_test")})
    with untouched(cluster, *DATABASES):
        done = repository.run("reset").expect(3, "'dev'", "'login'", 'GRANT "login" TO "dev"')
    before = cluster.oid("shop_test")
    mended(cluster, done.stderr)
    repository.run("reset").expect(0)
    assert_fresh(cluster, "shop_test", before=before, owner="login")
    repository.run("reset").expect(0)
    repository.run("test").expect(0)


def test_a_member_that_does_not_inherit(standing_alone: tuple[SampleRepository, ScratchCluster]) -> None:
    """NOINHERIT: a member, yet without the owner's rights, and so without the drop."""
    repository, cluster = standing_alone
    cluster.create_role("login", "LOGIN")
    cluster.execute("GRANT login TO dev; ALTER DATABASE shop_test OWNER TO login; ALTER ROLE dev NOINHERIT")
    repository.env_file({"TEST_DATABASE_URL": cluster.dsn("login", "shop_test")})
    with untouched(cluster, *DATABASES):
        done = repository.run("reset").expect(3, "'shop_test'", "'login'", "INHERIT")
    mended(cluster, done.stderr)
    repository.run("reset").expect(0)


def test_a_superusers_session(standing_alone: tuple[SampleRepository, ScratchCluster]) -> None:
    """A superuser's console on the test database: named with its pid, both databases open as before, the console alive."""
    repository, cluster = standing_alone
    with cluster.connect("su", "shop_test", application_name="his console") as console:
        with untouched(cluster, *DATABASES):
            pid = f"pid {console.info.backend_pid}"
            repository.run("reset").expect(4, "'shop_test'", pid, "'su'", "his console", "Only a superuser can end it")
        assert console.execute("SELECT 1").fetchone() == (1,)
    repository.run("reset").expect(0)


def test_somebody_elses_session(standing_alone: tuple[SampleRepository, ScratchCluster]) -> None:
    """A plain role's session: the message names pg_signal_backend, and with that grant the session is ended and named."""
    repository, cluster = standing_alone
    cluster.create_role("other", "LOGIN")
    with cluster.connect("other", "shop_test", application_name="his script") as session:
        pid = session.info.backend_pid
        with untouched(cluster, *DATABASES):
            done = repository.run("reset").expect(4, "'shop_test'", f"pid {pid}", "'other'", "pg_signal_backend")
        mended(cluster, done.stderr)
        assert str(pid) in repository.run("reset").expect(0).output
        assert cluster.execute(f"SELECT FROM pg_stat_activity WHERE pid = {pid}") == []


def test_a_superusers_session_is_beyond_pg_signal_backend(standing_alone: tuple[SampleRepository, ScratchCluster]) -> None:
    """The grant does not reach superusers, and the message does not send anybody after it."""
    repository, cluster = standing_alone
    cluster.execute("GRANT pg_signal_backend TO dev")
    with cluster.connect("su", "shop_e2e"), untouched(cluster, *DATABASES):
        done = repository.run("reset").expect(4, "'shop_e2e'", "Only a superuser can end it")
        assert "GRANT" not in done.output


def test_a_role_that_may_not_come_in(standing_alone: tuple[SampleRepository, ScratchCluster]) -> None:
    """A wrong password, a locked role and a closed maintenance database: refused with the server's words, no password shown."""
    repository, cluster = standing_alone
    wrong = repository.dsn("MAINTENANCE_DATABASE_URL").replace("dev-secret-9041", "wrong-secret-9042")
    repository.env_file({"MAINTENANCE_DATABASE_URL": wrong})
    with untouched(cluster, *DATABASES):
        done = repository.run("reset").expect(3, "MAINTENANCE_DATABASE_URL", "the server says no")
        assert "wrong-secret-9042" not in done.output
        repository.env_file({"MAINTENANCE_DATABASE_URL": cluster.dsn("dev", "nowhere")})
        repository.run("reset").expect(3, "MAINTENANCE_DATABASE_URL", "nowhere")
        repository.env_file()
        cluster.execute("ALTER ROLE dev NOLOGIN")
        repository.run("reset").expect(3, "MAINTENANCE_DATABASE_URL", "dev")
        cluster.execute("ALTER ROLE dev LOGIN CONNECTION LIMIT 0")
        repository.run("reset").expect(3, "MAINTENANCE_DATABASE_URL", "or the limit it has reached.")
        cluster.execute("ALTER ROLE dev CONNECTION LIMIT -1")
    repository.run("reset").expect(0)


def test_a_parameter_of_the_dsn_that_the_server_or_libpq_refuses(standing_alone: tuple[SampleRepository, ScratchCluster]) -> None:
    """A server without SSL is there all the same: the parameter is named, not a server to be started."""
    repository, cluster = standing_alone
    for variable in ("MAINTENANCE_DATABASE_URL", "TEST_DATABASE_URL"):
        for parameter, code in (("sslmode=require", 3), ("target_session_attrs=standby", 3), ("sslmode=maybe", 2)):
            repository.env_file({variable: f"{repository.dsn(variable)}?{parameter}"})
            with untouched(cluster, *DATABASES):
                done = repository.run("reset", "--fresh").expect(code, variable, parameter.partition("=")[0])
            assert "no server answers" not in done.output
            assert code != 2 or "harness_new_" not in done.output
