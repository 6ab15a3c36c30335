"""No password reaches any output, argument, log, report or document, after a run in which everything fails."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.builders import Completed, SampleRepository, ScratchCluster

PASSWORDS = {
    "boss": "application-p@ss/9041?é",
    "dev": "test'role\"%s #5188",
    "keeper": "maintenance+&=7720",
    "elsewhere": "the-shells-own-3316",
    "wrong": "mistyped-password-6612",
}
FAILS = """\
import logging, os, sys, subprocess
import psycopg, pytest

URL = os.environ["TEST_DATABASE_URL"]

def test_compares():
    assert URL == "something else"

def test_prints():
    print(URL)
    print(URL, file=sys.stderr)
    logging.warning("connecting to %s", URL)
    raise RuntimeError(f"cannot use {URL}")

def test_connects():
    psycopg.connect(URL, dbname="nowhere")

def test_connects_by_parts():
    psycopg.connect(URL, password=URL[::-1])

def test_shows_a_connection():
    with psycopg.connect(URL) as connection:
        pytest.fail(f"{connection} {connection.info.get_parameters()}")

def test_program():
    subprocess.run(["sh", "-c", 'echo "$TEST_DATABASE_URL"; exit 1'], check=True)

@pytest.fixture
def broken():
    raise ValueError(URL)

def test_fixture(broken):
    pass

@pytest.mark.skip(reason=f"only with {URL}")
def test_skipped():
    pass
"""
CRASHES = "import os\ndef test_it():\n    print(os.environ['E2E_DATABASE_URL'], flush=True)\n    os.abort()\n"
SPEAKS = '[[migrations]]\nstream = "tool"\ncommand = ["sh", "-c", "echo connecting to $DATABASE_URL; echo $DATABASE_URL >&2; exit 3"]\n'


@pytest.fixture
def talkative(sample_repository: SampleRepository) -> SampleRepository:
    """Return a repository with a role, and so a password, for each variable."""
    cluster = sample_repository.cluster
    assert cluster is not None
    for role, options in (("boss", "LOGIN"), ("keeper", "LOGIN CREATEDB")):
        cluster.create_role(role, options, password=PASSWORDS[role])
    cluster.passwords["dev"] = PASSWORDS["dev"]
    cluster.execute(f"ALTER ROLE dev PASSWORD $pw${PASSWORDS['dev']}$pw$; GRANT dev TO keeper; ALTER DATABASE shop OWNER TO boss")
    env_file(sample_repository)
    return sample_repository


def env_file(repository: SampleRepository, **changes: str) -> None:
    """Write test/.env, each variable with its own role."""
    cluster = repository.cluster
    assert cluster is not None
    usual = {"MC_DB_DSN": cluster.dsn("boss", "shop"), "MAINTENANCE_DATABASE_URL": cluster.dsn("keeper", "postgres")}
    repository.env_file({**usual, **changes})


def shapes(password: str) -> set[str]:
    """Return how a password may be written down."""
    return {password, quote(password, safe=""), quote(password), password.replace("'", "\\'"), repr(password)[1:-1]}


def leaks(text: str) -> list[str]:
    """Return the lines of a text that have a password in any shape."""
    every = {shape for password in PASSWORDS.values() for shape in shapes(password)}
    return [line for line in text.splitlines() if any(shape in line for shape in every)]


@contextmanager
def watching_arguments() -> Iterator[set[str]]:
    """Collect, every few milliseconds, the command line of every process of this machine."""
    seen: set[str] = set()
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    seen.add(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            time.sleep(0.005)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def test_no_password_anywhere(talkative: SampleRepository) -> None:
    """Refusals, failed migrations, tools that speak, failing and crashing tests; then everything that was written is searched."""
    cluster = talkative.cluster
    assert cluster is not None
    shell = {"MC_DB_DSN": f"postgresql://boss:{PASSWORDS['elsewhere']}@127.0.0.1:{cluster.port}/other"}
    shell |= {"TEST_DATABASE_URL": f"postgresql://dev:{PASSWORDS['wrong']}@127.0.0.1:{cluster.port}/stale"}
    done: list[Completed] = []
    with watching_arguments() as arguments:
        done.append(talkative.run("reset", env=shell).expect(0, "warning"))
        done += _refusals(talkative, cluster)
        done += _failed_migrations(talkative)
        talkative.package("tests/checkout", CRASHES, name="test_checkout.py")
        for command in ("status", "doctor"):
            done.append(talkative.run(command, "--json", f"{command}.json"))
        reports = ("--junit", "junit.xml", "--html", "page.html", "--json", "result.json", "--slowest", "5")
        done.append(talkative.run("test", "--e2e", *reports, env=shell).expect(1))
        done.append(talkative.run("test", "--json", "-").expect(0))
        done.append(talkative.run("test", "--quiet", "--package", "tests/checkout").expect(1))
    for one in done:
        assert leaks(one.output) == [], one.argv
    written = [path for path in talkative.root.rglob("*") if path.is_file() and path.name != ".env"]
    assert {"junit.xml", "page.html", "result.json", "status.json", "doctor.json", "last.json"} <= {path.name for path in written}
    found = {str(path.relative_to(talkative.root)): leaks(path.read_text(errors="replace")) for path in written}
    assert {path: lines for path, lines in found.items() if lines} == {}
    assert [path for path in talkative.state.rglob("*") if path.is_file() and leaks(path.read_text(errors="replace"))] == []
    assert [line for line in arguments if leaks(line)] == []
    assert any("inv reset" in line for line in arguments)


def _refusals(repository: SampleRepository, cluster: ScratchCluster) -> Iterator[Completed]:
    wrong = quote(PASSWORDS["wrong"], safe="")
    env_file(repository, MAINTENANCE_DATABASE_URL=f"postgresql://keeper:{wrong}@127.0.0.1:{cluster.port}/postgres")
    yield repository.run("reset").expect(3)
    env_file(repository, TEST_DATABASE_URL=cluster.dsn("boss", "shop").replace("127.0.0.1", "localhost"))
    yield repository.run("reset").expect(3)
    env_file(repository, TEST_DATABASE_URL=f"'postgresql://dev:{PASSWORDS['boss']}@127.0.0.1:{cluster.port}/shop_test'")
    yield repository.run("reset").expect(2)
    env_file(repository, TEST_DATABASE_URL=f'"host=nowhere.invalid dbname=shop_test password={PASSWORDS["wrong"]} port=x"')
    yield repository.run("reset").expect(2)
    env_file(repository, MC_DB_DSN=f"postgresql://boss:{wrong}@127.0.0.1:1/shop")
    yield repository.run("reset").expect(0, "cannot be asked")
    env_file(repository)


def _failed_migrations(repository: SampleRepository) -> Iterator[Completed]:
    path = repository.migration("0002_role.sql", f"ALTER ROLE nobody PASSWORD $pw${PASSWORDS['keeper']}$pw$;\n")
    yield repository.run("reset").expect(4)
    path.unlink()
    settings = (repository.root / "harness.toml").read_text()
    repository.settings(settings.replace("[packages]", f"{SPEAKS}\n[packages]"))
    yield repository.run("reset").expect(4, "connecting to")
    repository.settings(settings)
    yield repository.run("migrations-check")
    repository.package("tests/orders", FAILS, name="test_orders.py")
    done = repository.run("test", "--junit", "first.xml").expect(1)
    assert len(re.findall(r"(?m)^(FAILED|ERROR) ", done.output)) >= 7, done.output
    yield done
    repository.package("tests/orders", "def test_it(test_connection): pass\n", name="test_orders.py")
