"""DSN-01 and DSN-03: what a DSN leaves out comes from nowhere else, and every password means itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import SampleRepository, ScratchCluster, Sentinel, assert_fresh
from tests.guard.conftest import verdict

PASSWORD = "p@:/?#%&=+ '\"\\$é"
ALEMBIC_ENV = """\
import os
from alembic import context
from sqlalchemy import create_engine
with create_engine(os.environ["DATABASE_URL"]).connect() as connection:
    context.configure(connection=connection, target_metadata=None)
    with context.begin_transaction():
        context.run_migrations()
"""
REVISION = """\
from alembic import op
revision, down_revision, branch_labels, depends_on = "1", None, None, None
def upgrade(): op.execute("CREATE TABLE item(id int PRIMARY KEY)")
"""
REACHES = """\
import os, subprocess

EXPECTED = {expected!r}

def test_the_variable():
    assert os.environ["TEST_DATABASE_URL"] == EXPECTED

def test_psycopg():
    import psycopg
    with psycopg.connect(os.environ["TEST_DATABASE_URL"]) as connection:
        assert connection.execute("SELECT inet_server_port(), current_database()").fetchone() == ({port}, "shop_test")

def test_psql():
    query = "SELECT inet_server_port(), current_database()"
    done = subprocess.run(["psql", "-XAt", os.environ["TEST_DATABASE_URL"], "-c", query], capture_output=True, text=True)
    assert done.stdout == "{port}|shop_test\\n", done.stderr
"""


@pytest.mark.parametrize("end", ["", "/", "/?sslmode=disable", "?dbname="])
def test_no_database_name(witnessed: SampleRepository, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library would take PGDATABASE, else the user's name, and that is the application's: refused before any connection."""
    assert witnessed.cluster is not None
    monkeypatch.setenv("PGDATABASE", "shop")
    if not witnessed.cluster.execute("SELECT FROM pg_roles WHERE rolname = 'shop'"):
        witnessed.cluster.execute("CREATE ROLE shop LOGIN SUPERUSER PASSWORD 'x'")
    try:
        witnessed.env_file({"TEST_DATABASE_URL": f"postgresql://shop@127.0.0.1:{witnessed.cluster.port}{end}"})
        begin = len(witnessed.cluster.log())
        verdict(witnessed).expect(2, "TEST_DATABASE_URL", "names no database")
        assert "connection" not in witnessed.cluster.log()[begin:]
    finally:
        witnessed.cluster.execute("DROP ROLE shop")


@pytest.mark.parametrize(
    "text", ["postgresql:///shop_test", "postgresql://dev@/shop_test", "dbname=shop_test", "user=dev dbname=shop_test"]
)
def test_no_host(witnessed: SampleRepository, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library would take PGHOST or the default socket."""
    monkeypatch.setenv("PGHOST", "127.0.0.1")
    witnessed.env_file({"TEST_DATABASE_URL": text})
    verdict(witnessed).expect(2, "TEST_DATABASE_URL", "names no host")


def test_the_shells_libpq_variables_lead_nobody_away(sample_repository: SampleRepository, tmp_path: Path) -> None:
    """With a complete DSN neither reset nor tests follow PGHOSTADDR, PGSERVICE and the rest to a second cluster."""
    repository, cluster = sample_repository, sample_repository.cluster
    assert cluster is not None
    with ScratchCluster() as second:
        second.create_role("dev", "LOGIN CREATEDB", password=cluster.passwords["dev"])
        for name in ("shop", "shop_test", "shop_e2e"):
            second.create_database(name, "dev")
        service = tmp_path / "pg_service.conf"
        service.write_text(f"[there]\nhost=127.0.0.1\nport={second.port}\nuser=dev\ndbname=shop\npassword=dev-secret-9041\n")
        shell = {"PGHOST": "127.0.0.1", "PGPORT": str(second.port), "PGHOSTADDR": "127.0.0.1", "PGUSER": "dev", "PGDATABASE": "shop"}
        shell |= {"PGSERVICE": "there", "PGSERVICEFILE": str(service), "PGPASSWORD": "wrong", "PGSSLMODE": "require"}
        repository.package(
            "tests/orders", REACHES.format(expected=repository.dsn("TEST_DATABASE_URL"), port=cluster.port), name="test_orders.py"
        )
        oids = [second.oid(name) for name in second.databases()]
        begin = len(second.log())
        with Sentinel(cluster):
            repository.run("reset", env=shell).expect(0)
            repository.run("reset", env=shell).expect(0)
            repository.run("test", "--e2e", env=shell).expect(0)
        assert "connection" not in second.log()[begin:]
        assert [second.oid(name) for name in second.databases()] == oids


def test_a_password_of_special_characters(sample_repository: SampleRepository) -> None:
    """Percent-encoded, it reaches the reset, psql, a test and an alembic env.py; the child gets the text byte for byte."""
    repository, cluster = sample_repository, sample_repository.cluster
    assert cluster is not None
    cluster.create_role("odd", "LOGIN CREATEDB", password=PASSWORD)
    cluster.execute("GRANT odd TO dev")
    url = cluster.dsn("odd", "shop_test")
    repository.env_file({"TEST_DATABASE_URL": url})
    repository.package("tests/orders", REACHES.format(expected=url, port=cluster.port), name="test_orders.py")
    with Sentinel(cluster):
        repository.run("reset").expect(0)
        assert_fresh(cluster, "shop_test", owner="odd")
        repository.run("test").expect(0)
        done = repository.run("psql", "--", "-XAtc", "SELECT current_user, current_database()").expect(0, "odd|shop_test")
        assert PASSWORD not in done.output


def test_a_password_of_special_characters_and_alembic(sample_repository: SampleRepository) -> None:
    """The variable that env.py reads has the password percent-encoded, and no interpolation stumbles over it."""
    repository, cluster = sample_repository, sample_repository.cluster
    assert cluster is not None
    pytest.importorskip("alembic", reason="alembic is not installed; it is in the dev group")
    cluster.create_role("odd", "LOGIN CREATEDB", password=PASSWORD)
    cluster.execute("GRANT odd TO dev")
    repository.env_file({"TEST_DATABASE_URL": cluster.dsn("odd", "shop_test"), "E2E_DATABASE_URL": cluster.dsn("odd", "shop_e2e")})
    stream = '[[migrations]]\nstream = "core"\ncommand = ["alembic", "upgrade", "head"]\nurl = "postgresql+psycopg"\ninputs = ["alembic/**/*.py"]\n'
    settings = (repository.root / "harness.toml").read_text()
    head, _, tail = settings.partition("[[migrations]]")
    repository.settings(head + stream + "\n" + tail[tail.index("[packages]") :])
    repository.write("alembic.ini", "[alembic]\nscript_location = alembic\n")
    repository.write("alembic/env.py", ALEMBIC_ENV)
    repository.write("alembic/versions/0001_base.py", REVISION)
    with Sentinel(cluster):
        repository.run("reset").expect(0)
        assert_fresh(cluster, "shop_test", owner="odd", tables={"public.item", "public.alembic_version"})


@pytest.mark.parametrize(
    ("password", "encoding"), [("p@ss", "%40"), ("p/x", "%2F"), ("50%off", "%25"), ("p?x", "%3F"), ("p#x", "%23"), ("a b", "")]
)
def test_a_raw_password(witnessed: SampleRepository, password: str, encoding: str) -> None:
    """Refused from its text alone, naming variable and encoding, with no part of the password, and no other host asked."""
    assert witnessed.cluster is not None
    witnessed.env_file({"TEST_DATABASE_URL": f"'postgresql://dev:{password}-hush-9041@127.0.0.1:{witnessed.cluster.port}/shop_test'"})
    begin = len(witnessed.cluster.log())
    done = verdict(witnessed).expect(2, "TEST_DATABASE_URL", encoding)
    assert "hush" not in done.output
    assert "connection" not in witnessed.cluster.log()[begin:]
