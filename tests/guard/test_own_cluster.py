"""The third lock: from inside a package, with the right URL and password, PostgreSQL itself refuses everything that is not the package's."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.place import Place, end_all

ATTACKS = '''\
"""What a test may try on its way out of its own database."""

import os

import psycopg
import pytest

OWN, OTHER = {own!r}, {other!r}
URL = os.environ["{variable}"]
STATEMENTS = [
    "CREATE ROLE intruder",
    "CREATE ROLE intruder LOGIN SUPERUSER",
    "CREATE DATABASE intruder",
    f"ALTER ROLE {{OWN}} CREATEDB",
    f"ALTER ROLE {{OWN}} SUPERUSER",
    f"GRANT shop TO {{OWN}}",
    f"GRANT {{OTHER}} TO {{OWN}}",
    f"GRANT pg_read_server_files TO {{OWN}}",
    "SET ROLE shop",
    f"SET ROLE {{OTHER}}",
    "SET ROLE {superuser}",
    "SET SESSION AUTHORIZATION shop",
    "SET SESSION AUTHORIZATION {superuser}",
    "DROP DATABASE shop",
    "DROP DATABASE shop WITH (FORCE)",
    f"DROP DATABASE {{OTHER}}",
    "DROP DATABASE postgres",
    "ALTER DATABASE shop RENAME TO gone",
    "ALTER DATABASE shop ALLOW_CONNECTIONS false",
    "ALTER DATABASE shop SET statement_timeout = 1",
    f"GRANT CONNECT ON DATABASE shop TO {{OWN}}",
    "COMMENT ON DATABASE shop IS 'mine'",
    "ALTER ROLE shop PASSWORD 'x'",
    "ALTER ROLE shop SET search_path = 'x'",
    "SELECT rolpassword FROM pg_authid",
    "SELECT passwd FROM pg_shadow",
    "SELECT pg_read_file('postgresql.conf')",
    "SELECT pg_read_file('pgharness.json')",
    "SELECT lo_import('/etc/passwd')",
    "COPY (SELECT 1) TO PROGRAM 'true'",
    "CREATE TEMPORARY TABLE t(x text); COPY t FROM 'pgharness.json'",
    "CREATE EXTENSION dblink",
    "CREATE EXTENSION file_fdw",
    "ALTER SYSTEM SET fsync = on",
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'shop'",
    "SELECT pg_reload_conf()",
]


@pytest.mark.parametrize("name", ["shop", OTHER, "postgres", "template1", "template0"])
def test_no_other_database_lets_us_in(name):
    with pytest.raises(psycopg.OperationalError, match="permission denied|not currently accepting"):
        psycopg.connect(URL, dbname=name, connect_timeout=5)


def test_no_template_lets_us_in(own_connection):
    names = [name for (name,) in own_connection.execute("SELECT datname FROM pg_database WHERE datname LIKE 'harness%'")]
    assert names
    for name in names:
        with pytest.raises(psycopg.OperationalError, match="permission denied|not currently accepting"):
            psycopg.connect(URL, dbname=name, connect_timeout=5)


@pytest.fixture
def own_connection():
    with psycopg.connect(URL, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize("statement", STATEMENTS)
def test_no_statement_leads_out(own_connection, statement):
    with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedFile)):
        own_connection.execute(statement)


@pytest.mark.parametrize("role", ["shop", OTHER, "{superuser}"])
def test_no_other_login_is_open_with_our_password(role):
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(URL, user=role, connect_timeout=5)


def test_the_environment_has_no_other_password():
    with open("passwords") as lines:
        secrets = lines.read().split()
    assert len(secrets) == 3
    assert not [name for name, value in os.environ.items() for secret in secrets if secret in value]
    assert os.environ["MC_DB_DSN"] == "postgresql://application-database-is-hidden-from-tests.invalid/hidden"
    assert "{absent}" not in os.environ and "MAINTENANCE_DATABASE_URL" not in os.environ


def test_what_suites_need_is_allowed(own_connection):
    own_connection.execute("CREATE SCHEMA s; CREATE TABLE s.t(i int); INSERT INTO s.t VALUES (1); TRUNCATE s.t; CREATE EXTENSION IF NOT EXISTS pg_trgm")
    own_connection.execute("SELECT pg_advisory_lock(1)")
    own_connection.execute("VACUUM s.t")
    own_connection.execute("DROP EXTENSION pg_trgm; DROP SCHEMA s CASCADE")
'''
LOADS_THE_APPLICATIONS_ENV = "from dotenv import load_dotenv\nload_dotenv('.env')\n"


@pytest.fixture(scope="module")
def own() -> Iterator[Place]:
    """Return a worktree with a cluster of its own, in which packages try to break out."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  # made with mkdtemp
    folder = Path(tempfile.mkdtemp(prefix="harness guard ", dir=memory)).resolve()
    folder.chmod(0o755)
    try:
        place = Place(folder / "the shop", folder / "state")
        place.up().expect(0)
        yield place
    finally:
        end_all(folder)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def watched(own: Place) -> Iterator[Place]:
    """Return it with a row and an idle session in the application's database that are there afterwards."""
    with own.connect("MC_DB_DSN") as session:
        session.execute("DROP TABLE IF EXISTS keep; CREATE TABLE keep(v int); INSERT INTO keep VALUES (42)")
        before = _state(own)
        yield own
        assert session.execute("SELECT v FROM keep").fetchall() == [(42,)]
        assert _state(own) == before


def _state(own: Place) -> tuple[Any, ...]:
    databases = "SELECT json_agg(d ORDER BY datname) FROM (SELECT oid, datname, datacl, datdba FROM pg_database WHERE datname IN ('shop', 'postgres', 'template1')) d"
    return own.value(databases), own.value(
        "SELECT json_agg(r ORDER BY rolname) FROM (SELECT rolname, rolpassword, rolsuper, rolcreatedb FROM pg_authid) r"
    )


@pytest.mark.parametrize(("role", "variable"), [("test", "TEST_DATABASE_URL"), ("e2e", "E2E_DATABASE_URL")])
def test_a_package_cannot_get_out(watched: Place, role: str, variable: str) -> None:
    """Thirty ways and more to another database, another role, a file or a password: each one refused by the server."""
    own, other = ("shop_test", "shop_e2e") if role == "test" else ("shop_e2e", "shop_test")
    absent = "E2E_DATABASE_URL" if role == "test" else "TEST_DATABASE_URL"
    superuser = watched.record["superuser"]
    source = ATTACKS.format(own=own, other=other, variable=variable, absent=absent, superuser=superuser)
    package = "tests/orders" if role == "test" else "tests/checkout"
    for path in (watched.root / "tests").rglob("*.py"):
        path.unlink()
    watched.package("tests/orders", "def test_it(): pass\n", name="test_it.py")
    watched.package("tests/checkout", "def test_it(): pass\n", name="test_it.py")
    watched.package(package, source)
    watched.package("tests", LOADS_THE_APPLICATIONS_ENV, name="conftest.py")
    passwords = [password for name, password in watched.record["passwords"].items() if name != own]
    watched.write("passwords", "\n".join(passwords))
    watched.write(".env", "MC_DB_DSN=postgresql://shop:not-the-password@127.0.0.1:1/shop\n")
    done = watched.run("test", "--e2e", "--json", "result.json").expect(0)
    (found,) = [one for one in json.loads((watched.root / "result.json").read_text())["packages"] if one["package"] == package]
    assert len(found["tests"]) > 45, done.output
    assert {one["outcome"] for one in found["tests"]} == {"passed"}


def test_our_own_address_is_checked_against_our_own_data(watched: Place) -> None:
    """A server whose identity is not this worktree's is refused, exit 5, though it answers on the leased port with the right password."""
    record = watched.data / "pgharness.json"
    text = record.read_text()
    stranger = text.replace(watched.record["system_identifier"], "1234567890123456789")
    assert stranger != text
    record.write_text(stranger)
    try:
        done = watched.run("reset").expect(5, "another server", "bootstrap-stack.sh")
        assert "is pristine" not in done.output
    finally:
        record.write_text(text)
    watched.run("reset").expect(0)
