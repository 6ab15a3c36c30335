"""--isolate: pristine databases before every package, the next ones made while a package runs."""

from __future__ import annotations

import json
import re
import signal
import time

import pytest

from tests.builders import SampleRepository, assert_fresh
from tests.verdict.projects import FAIL, KINDS, Project

EVERYTHING = "\n".join(kind.pollute for name, kind in KINDS.items() if name not in ("session", "setting"))
PRISTINE = "\n".join(FAIL.format(condition=kind.condition) for kind in KINDS.values())
SETTINGS = """\
[databases]
application = "shop"
test = "shop_test"
e2e = "shop_e2e"

[[migrations]]
stream = "core"
{stream}

[packages]
test = [{{ path = "tests/a", command = ["sh", "run.sh"] }}, {{ path = "tests/b", command = ["sh", "run.sh"] }}, {{ path = "tests/c", command = ["sh", "run.sh"] }}]
e2e = [{{ path = "tests/d", command = ["sh", "run.sh"] }}, {{ path = "tests/e", command = ["sh", "run.sh"] }}]
"""
FOLDER = 'directory = "migrations/core"'


@pytest.fixture
def polluting(sample_repository: SampleRepository) -> SampleRepository:
    """Return a project of which each package pollutes in every way and fails where another one did."""
    Project(sample_repository, 0, 4, 0)
    sample_repository.settings(SETTINGS.format(stream=FOLDER))
    script = (sample_repository.root / "tests/p00/run.sh").read_text()
    for name in "abcde":
        sample_repository.write(f"tests/{name}/run.sh", script.replace("TEST_DATABASE_URL", "E2E_DATABASE_URL") if name > "c" else script)
        sample_repository.write(f"tests/{name}/run.sql", PRISTINE + EVERYTHING)
    return sample_repository


def leftovers(repository: SampleRepository) -> list[str]:
    """Return the databases beside the project's own and its templates."""
    assert repository.cluster is not None
    return [name for name in repository.cluster.databases() if not name.startswith(("shop", "harness_tpl_"))]


def test_every_package_has_pristine_databases(polluting: SampleRepository) -> None:
    """Without it the first package spoils the others' database; with it all are green, and nothing stands beside the databases."""
    assert "not fine: tests/b, tests/c, tests/e" in polluting.run("test", "--e2e").expect(1).stdout
    document = polluting.root / "document.json"
    done = polluting.run("test", "--e2e", "--isolate", "--json", str(document)).expect(0)
    assert "all fine: 0 tests in 5 packages, on pristine databases" in done.stdout
    found = json.loads(document.read_text())
    summaries = [package["residue"]["summary"] for package in found["packages"]]
    assert len(set(summaries)) == 1, "each package left the same, measured from the same beginning"
    assert leftovers(polluting) == []
    assert polluting.cluster is not None
    polluting.run("reset").expect(0)
    assert len([name for name in polluting.cluster.databases() if name.startswith("harness_tpl_")]) == 2


def test_in_ci_the_run_migrates_once_and_keeps_no_template(polluting: SampleRepository) -> None:
    """Cold as CI must be: the migrations run once per database, their result serves this run alone and is gone afterwards."""
    assert polluting.cluster is not None
    sessions = []
    migrating = re.compile(r"database=harness_new_\S+ application_name=(?!harness residue)")
    for flags in ((), ("--isolate",)):
        before = len(migrating.findall(polluting.cluster.log()))
        done = polluting.run("test", "--e2e", *flags, env={"CI": "true"}).expect(0 if flags else 1)
        assert done.stdout.count("migrated from zero, 1 migration(s)") == 2
        assert polluting.cluster.databases() == ["shop", "shop_e2e", "shop_test"]
        sessions.append(len(migrating.findall(polluting.cluster.log())) - before)
    assert sessions[0] == sessions[1] > 0, "no session migrates but those before the first package"


def test_a_package_keeps_its_prepared_transaction(polluting: SampleRepository) -> None:
    """While a package runs nothing is done to its database: what it prepared, it can commit."""
    script = (polluting.root / "tests/a/run.sh").read_text()
    first, second = script.replace("run.sql", "first.sql").replace("exec ", ""), script.replace("run.sql", "second.sql")
    polluting.write("tests/b/run.sh", f"{first}sleep 1\n{second}")
    polluting.write("tests/b/first.sql", "BEGIN; INSERT INTO ticket VALUES (7, 7); PREPARE TRANSACTION 'kept';")
    polluting.write("tests/b/second.sql", "COMMIT PREPARED 'kept';")
    polluting.run("test", "--isolate").expect(0, "public.ticket 1 → 2 rows (1 written)")


def test_an_interrupted_isolated_run_leaves_nothing_in_the_way(polluting: SampleRepository) -> None:
    """Ctrl-C while a package runs and the next databases are made: exit 130, nothing beside the databases, the next reset is fine."""
    polluting.write("tests/b/run.sh", "echo here\nsleep 60\n")
    with polluting.start("test", "--isolate") as process:
        assert process.stdout is not None
        assert any(line.startswith("here") for line in process.stdout)
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        started = time.monotonic()
        assert process.wait(30) == 130
        assert time.monotonic() - started < 15
    assert leftovers(polluting) == []
    polluting.run("reset").expect(0)
    assert polluting.cluster is not None
    tables = {"public.item", "public.note", "public.ticket", 'public.odd "name', "public.part", "public.part_north"}
    assert_fresh(polluting.cluster, "shop_test", tables=tables)


def test_a_killed_isolated_run_is_swept(polluting: SampleRepository) -> None:
    """SIGKILL at any moment: the next run waits for what is at work in the server, sweeps, and is green."""
    polluting.write("tests/b/run.sh", "echo here\nsleep 3\n")
    with polluting.start("test", "--isolate") as process:
        assert process.stdout is not None
        assert any(line.startswith("here") for line in process.stdout)
        process.kill()
        process.communicate()
    polluting.run("test", "--isolate").expect(0)
    assert leftovers(polluting) == []
