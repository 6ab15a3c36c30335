"""The field cases of a run through the real command, on a real server: `inv test` from reset to exit code."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from tests.builders import SampleRepository, ScratchCluster, Sentinel
from tests.run.project import alive, wait_until

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
NO_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
HOLDING = """
import os, pathlib, subprocess, sys, time
import psycopg
HOLD = "import psycopg, sys, time; c = psycopg.connect(sys.argv[1]); c.execute('BEGIN; LOCK item'); time.sleep(300)"
def test_it(test_connection):
    subprocess.Popen([sys.executable, "-c", HOLD, os.environ["TEST_DATABASE_URL"], "{mark}"], start_new_session=True)
    pathlib.Path("begun").touch()
    time.sleep(300)
"""


def sessions(cluster: ScratchCluster, name: str) -> int:
    """Return how many sessions the database has."""
    return int(cluster.value(f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}' AND backend_type = 'client backend'"))


@pytest.mark.parametrize("signum", SIGNALS, ids=[signum.name for signum in SIGNALS])
def test_a_signal_during_the_tests(sample_repository: SampleRepository, scratch_cluster: ScratchCluster, signum: int) -> None:
    """RUN-04: within ten seconds no process and no session is left, and the next reset works."""
    mark = f"mark-{signum}-{os.getpid()}"
    sample_repository.package("tests/orders", HOLDING.format(mark=mark), name="test_orders.py")
    with Sentinel(scratch_cluster), sample_repository.start("test", "--e2e", env=NO_PLUGINS) as run:
        wait_until((sample_repository.root / "begun").exists, 60)
        wait_until(lambda: sessions(scratch_cluster, "shop_test") >= 2, 20)
        run.send_signal(signum)
        shown, _ = run.communicate(timeout=30)
        assert run.returncode == 128 + signum
        assert "tests/orders: error" in shown, "what was done by then is not told"
        assert alive(mark) == []
        wait_until(lambda: sessions(scratch_cluster, "shop_test") == 0, 10)
    last = json.loads((sample_repository.root / "test/.stack/last.json").read_text())
    assert [package["status"] for package in last["packages"]] == ["error", "not-run"]
    sample_repository.run("reset").expect(0)


@pytest.mark.parametrize("signum", SIGNALS[1:], ids=[signum.name for signum in SIGNALS[1:]])
def test_a_signal_during_a_long_migration(sample_repository: SampleRepository, scratch_cluster: ScratchCluster, signum: int) -> None:
    """RUN-04: the statement is cancelled, no test starts, and the next run finds databases that are usable or rebuilds them."""
    sample_repository.run("reset").expect(0)
    migration = sample_repository.migration("0002_slow.sql", "SELECT pg_sleep(300);\n")
    with Sentinel(scratch_cluster), sample_repository.start("test", "--e2e", env=NO_PLUGINS) as run:
        at_work = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(300)%' AND pid <> pg_backend_pid()"
        wait_until(lambda: scratch_cluster.value(at_work), 60)
        run.send_signal(signum)
        run.communicate(timeout=30)
        assert run.returncode == 128 + signum
        wait_until(lambda: scratch_cluster.value(at_work) == 0, 10)
    for name in ("shop_test", "shop_e2e"):
        assert scratch_cluster.value("SELECT count(*) FROM item", database=name, role="dev") == 0
    migration.unlink()
    sample_repository.run("test", "--e2e", env=NO_PLUGINS).expect(0, "all fine: 2 tests in 2 packages")


def test_a_hook_may_run_it(sample_repository: SampleRepository) -> None:
    """RUN-05: git's variables, no terminal, a closed stdin; nothing reaches the tests."""
    sample_repository.git("init", "-q", "-b", "main")
    source = (
        "import os, subprocess\ndef test_it(test_connection):\n    assert not [name for name in os.environ if name.startswith('GIT_')]\n"
    )
    sample_repository.package("tests/orders", source, name="test_orders.py")
    command = shlex.join(sample_repository.argv("test"))
    hook = sample_repository.write(".git/hooks/pre-commit", f"#!/bin/sh\n{command} > hook.log 2>&1 <&-\necho $? > code\n")
    hook.chmod(0o755)
    sample_repository.write(".gitignore", "test/\n*.log\ncode\n")
    sample_repository.git("add", "-A")
    sample_repository.git("commit", "-q", "-m", "one")
    assert (sample_repository.root / "code").read_text() == "0\n", (sample_repository.root / "hook.log").read_text()


def test_nothing_is_cached_between_two_runs(sample_repository: SampleRepository) -> None:
    """After a reset and no change of source every test runs again; no bytecode and no cache is written."""
    sample_repository.package(
        "tests/orders", "def test_it(test_connection):\n    with open('ran', 'a') as ran: ran.write('x')\n", name="test_orders.py"
    )
    for _ in range(2):
        sample_repository.run("test").expect(0, "1 passed")
    assert (sample_repository.root / "ran").read_text() == "xx"
    found = [path for path in sample_repository.root.rglob("*") if path.name in ("__pycache__", ".pytest_cache") and "tests" in path.parts]
    assert found == []


def test_the_last_run_says_what_to_expect(sample_repository: SampleRepository) -> None:
    """last.json is read again, and the printed psql line is ours."""
    sample_repository.run("test", env=NO_PLUGINS).expect(0)
    assert "[1/1] tests/orders (about " in sample_repository.run("test", env=NO_PLUGINS).expect(0).stdout
    sample_repository.package("tests/orders", "def test_bad(): assert 0\n", name="test_orders.py")
    done = sample_repository.run("test", env=NO_PLUGINS).expect(1, "the database as it was left: inv psql")
    line = next(line.strip() for line in done.stdout.splitlines() if line.startswith("  inv test "))
    again = sample_repository.run(*shlex.split(line)[1:], env=NO_PLUGINS).expect(1, "1 failed")
    assert "failed: tests/orders::tests/orders/test_orders.py::test_bad" in again.stdout


def test_other_worktrees_environment_is_not_used(sample_repository: SampleRepository, tmp_path: Path) -> None:
    """An activated environment elsewhere changes nothing: the interpreter that runs us runs the tests."""
    source = "import os, sys\ndef test_it(): assert os.environ['VIRTUAL_ENV'] == sys.prefix\n"
    sample_repository.package("tests/orders", source, name="test_orders.py")
    other = tmp_path / "other" / "bin"
    other.mkdir(parents=True)
    environment = {"VIRTUAL_ENV": str(other.parent), "PATH": f"{other}:{os.environ['PATH']}", **NO_PLUGINS}
    subprocess.run(["/bin/sh", "-c", f"printf '#!/bin/sh\\nexit 99\\n' > '{other}/python'; chmod +x '{other}/python'"], check=True)
    sample_repository.run("test", env=environment).expect(0)


def test_a_path_of_another_class_is_refused_before_the_reset(sample_repository: SampleRepository, scratch_cluster: ScratchCluster) -> None:
    """It would run on the wrong database; nothing was asked of a server."""
    sample_repository.run("test", "--", "tests/checkout/test_checkout.py").expect(2, "'tests/checkout/test_checkout.py' lies in no package")
    assert "shop_test" not in scratch_cluster.databases()
    sample_repository.run("test", "--e2e", "--", "tests/checkout/test_checkout.py", env=NO_PLUGINS).expect(0)


def test_an_unpopulated_view_is_no_obstacle(sample_repository: SampleRepository) -> None:
    """It has no rows to look at, before or after."""
    sample_repository.migration("0002_view.sql", "CREATE MATERIALIZED VIEW hollow AS SELECT count(*) FROM item WITH NO DATA;\n")
    sample_repository.run("test", env=NO_PLUGINS).expect(0, "all fine")
    source = (
        "def test_it(test_connection):\n    test_connection.execute('REFRESH MATERIALIZED VIEW hollow')\n    test_connection.commit()\n"
    )
    sample_repository.package("tests/orders", source, name="test_orders.py")
    sample_repository.run("test", env=NO_PLUGINS).expect(0, "public.hollow 0 → 1 rows", "materialised view public.hollow changed")


@pytest.mark.parametrize("mode", [[], ["--isolate"]], ids=["shared", "isolated"])
def test_a_comment_on_the_database_is_told_and_shuts_nobody_out(sample_repository: SampleRepository, mode: list[str]) -> None:
    """By its stamp the next reset knows the database: each test that takes it is named, and the stamp is put back."""
    settings = sample_repository.root / "harness.toml"
    sample_repository.settings(settings.read_text().replace('"tests/orders"', '"tests/orders", "tests/quiet", "tests/again"'))
    source = "def test_it(test_connection):\n    test_connection.execute(\"COMMENT ON DATABASE shop_test IS 'mine'\")\n    test_connection.commit()\n"
    sample_repository.package("tests/orders", source, name="test_orders.py")
    sample_repository.package("tests/quiet", "def test_it(test_connection): pass\n")
    sample_repository.package("tests/again", source)
    done = sample_repository.run("test", *mode, env=NO_PLUGINS).expect(0, "3 packages")
    told = [line for line in done.stdout.splitlines() if "comment of this database" in line]
    assert told == [
        f"tests/{name} left in database 'shop_test': setting comment of this database: 'the stamp' → 'mine'" for name in ("orders", "again")
    ]
    sample_repository.run("reset").expect(0)


def test_locks_that_were_lost_are_no_green(sample_repository: SampleRepository) -> None:
    """Somebody else may have come in: the verdict is worth nothing."""
    source = """
def test_it(test_connection):
    test_connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'harness run%'")
"""
    sample_repository.package("tests/orders", source, name="test_orders.py")
    done = sample_repository.run("test", "--json", "document.json", env=NO_PLUGINS).expect(4, "locks was lost", "Run it again")
    assert "1 passed" in done.output
    assert json.loads((sample_repository.root / "document.json").read_text())["error"]["code"] == 4


def test_results_that_cannot_be_kept_are_told_after_the_summary(sample_repository: SampleRepository) -> None:
    """The tests have run: what they said is said."""
    sample_repository.write("test/.stack", "")
    done = sample_repository.run("test", env=NO_PLUGINS).expect(2, "all fine", "last.json", "Not a directory")
    assert "bug" not in done.output
