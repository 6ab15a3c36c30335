"""The pytest side: fixtures, skips that name their variable, and a stop at the application's door."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import HARNESS_ROOT, ScratchCluster
from tests.run.project import Project

APPLICATION = "postgresql://mc:pw123456@127.0.0.1:1/mc"


class ByHand(Project):
    """A project whose pytest is run by hand, without the runner."""

    def pytest(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `python -m pytest -p harness.plugin` with these variables."""
        argv = [sys.executable, "-m", "pytest", "-p", "harness.plugin", "-p", "no:cacheprovider", "-rs", "tests/it", *arguments]
        return subprocess.run(argv, cwd=self.root, env=self.environment(variables), capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def project(tmp_path: Path) -> ByHand:
    """Return a project whose one test asks for the test database."""
    project = ByHand(tmp_path / "p", "tests/it")
    project.package("tests/it", "def test_it(test_database_url): pass\n")
    return project


@pytest.mark.parametrize("value", [None, "", " "], ids=["unset", "empty", "blank"])
def test_an_unset_variable_skips_and_the_message_names_it(project: ByHand, value: str | None) -> None:
    """Variable and the command that sets it; never a default."""
    done = project.pytest(**({} if value is None else {"TEST_DATABASE_URL": value}), MC_DB_DSN=APPLICATION)
    assert done.returncode == 0
    assert "TEST_DATABASE_URL is not set; run test/bootstrap-stack.sh" in done.stdout
    assert "1 skipped" in done.stdout


FIXTURES = ["test_database_url", "e2e_database_url", "test_connection", "e2e_connection"]


@pytest.mark.parametrize("fixture", FIXTURES)
def test_every_fixture_skips_by_its_own_variable(project: ByHand, fixture: str) -> None:
    """Neither class's variable stands in for the other's."""
    project.package("tests/it", f"def test_it({fixture}): pass\n")
    own, other = ("E2E_DATABASE_URL", "TEST_DATABASE_URL") if fixture.startswith("e2e") else ("TEST_DATABASE_URL", "E2E_DATABASE_URL")
    done = project.pytest(**{other: "postgresql://u@127.0.0.1:1/x"})
    assert f"{own} is not set" in done.stdout


def test_code_without_fixtures_asks_by_name(project: ByHand) -> None:
    """Within a test, and at a module's top, where the whole module skips."""
    project.package("tests/it", "from harness.plugin import require_database\ndef test_it(): require_database('TEST_DATABASE_URL')\n")
    assert "1 skipped" in project.pytest().stdout
    project.package(
        "tests/it", "from harness.plugin import require_database\nURL = require_database('TEST_DATABASE_URL')\ndef test_it(): pass\n"
    )
    done = project.pytest()
    assert "1 skipped" in done.stdout
    assert "TEST_DATABASE_URL is not set" in done.stdout


SPELLINGS = {
    "same": APPLICATION,
    "localhost": "postgresql://mc:pw123456@localhost:1/mc",
    "driver": "postgresql+psycopg://other:x@127.0.0.1:1/mc",
    "override": "postgresql://mc:pw123456@127.0.0.1:1/mc_test?dbname=mc",
    "encoded": "postgresql://mc:pw123456@127.0.0.1:1/%6dc",
    "keywords": "host=127.0.0.1 port=1 user=mc password=pw123456 dbname=mc",
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_variable_that_names_the_applications_database_stops_the_run(project: ByHand, name: str) -> None:
    """Before the first test, by where it leads rather than how it is spelled, and without showing the password."""
    project.package("tests/it", "import pathlib\ndef test_it(): pathlib.Path('ran').touch()\n")
    text = SPELLINGS[name]
    done = project.pytest(TEST_DATABASE_URL=text, MC_DB_DSN=APPLICATION)
    finding = "says its dbname twice" if name == "override" else "names the application's database"
    assert done.returncode == 3
    assert f"TEST_DATABASE_URL {finding}" in done.stdout + done.stderr
    assert not (project.root / "ran").exists()
    assert "pw123456" not in done.stdout + done.stderr


def test_asking_for_the_applications_variable_stops_the_run(project: ByHand) -> None:
    """It is no test database, whatever it holds."""
    project.package("tests/it", "from harness.plugin import require_database\ndef test_it(): require_database('MC_DB_DSN')\n")
    assert project.pytest(MC_DB_DSN=APPLICATION).returncode == 3


def test_a_conftest_that_points_the_test_variable_at_the_application_stops_the_package(tmp_path: Path) -> None:
    """Under the runner the plugin knows where the application's database is although its variable is hidden."""
    project = Project(tmp_path / "p", "tests/it")
    project.package("tests/it", "import pathlib\ndef test_it(test_database_url): pathlib.Path('ran').touch()\n")
    project.write("tests/it/conftest.py", "import os\nos.environ['TEST_DATABASE_URL'] = 'postgresql://x:y@nobody.invalid:1/app'\n")
    project.run().expect(1, "TEST_DATABASE_URL names the application's database")
    assert not (project.root / "ran").exists()


def test_renamed_variables_are_the_ones_that_count(tmp_path: Path) -> None:
    """The fixtures follow harness.toml."""
    project = Project(tmp_path / "p")
    toml = '[databases]\napplication = { name = "shop", variable = "DATABASE_URL" }\ntest = { name = "shop_test", variable = "SHOP_TEST" }\ne2e = "shop_e2e"\n'
    project.settings(f'{toml}[packages]\ntest = ["tests/it"]\n')
    source = "import os\ndef test_own(test_database_url): assert test_database_url == os.environ['SHOP_TEST']\ndef test_other(e2e_database_url): pass\n"
    project.package("tests/it", source)
    result = project.packages(code=0)["tests/it"]
    assert [test["outcome"] for test in result["tests"]] == ["passed", "skipped"]
    assert result["skipped_for"] == {"E2E_DATABASE_URL": 1}


def test_importing_the_plugin_imports_no_driver() -> None:
    """It is loaded into every pytest of the environment."""
    code = "import harness.plugin, sys; assert not {'psycopg', 'rich', 'junitparser'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=HARNESS_ROOT, check=True, timeout=30)


def test_naming_the_plugin_beside_its_entry_point_registers_it_once(project: ByHand) -> None:
    """The entry point has the module's name."""
    done = project.pytest("--trace-config", PYTEST_DISABLE_PLUGIN_AUTOLOAD="")
    assert done.returncode == 0
    assert done.stdout.count("PLUGIN registered: <module 'harness.plugin'") <= 1


def test_a_pytest_within_a_test_is_none_of_the_runners_business(tmp_path: Path) -> None:
    """Neither one in a subprocess nor one in the same process writes into the package's outcomes."""
    project = Project(tmp_path / "p", "tests/it")
    project.write("inner/test_inner.py", "def test_inner(): assert 0\n")
    source = "import subprocess, sys, pytest\nARGS = ['-p', 'harness.plugin', 'inner']\n"
    source += "def test_child(): assert subprocess.run([sys.executable, '-m', 'pytest', *ARGS]).returncode == 1\ndef test_same(): assert pytest.main(ARGS[2:]) == 1\n"
    project.package("tests/it", source)
    result = project.packages(code=0)["tests/it"]
    assert [test["id"].rpartition("::")[2] for test in result["tests"]] == ["test_child", "test_same"]


def test_known_passwords_are_kept_out_of_reports(tmp_path: Path) -> None:
    """Neither the traceback, nor captured output, nor the document, nor the summary shows the DSN's password."""
    project = Project(tmp_path / "p", "tests/it")
    project.package("tests/it", "def test_it(test_database_url):\n    print('at', test_database_url)\n    assert test_database_url == ''\n")
    done = project.run("--json", "document.json", "--junit", "junit.xml", "--html", "page.html").expect(1, "app_test:***@nobody.invalid")
    texts = [done.output, *((project.root / name).read_text() for name in ("document.json", "junit.xml", "page.html"))]
    assert ["0123456789abcdef" in text for text in texts] == [False] * 4


def test_connections_roll_back_and_commit(tmp_path: Path, scratch_cluster: ScratchCluster) -> None:
    """test_connection leaves nothing, e2e_connection commits each statement."""
    scratch_cluster.clear()
    scratch_cluster.create_role("dev", "LOGIN")
    for name in ("one", "two"):
        scratch_cluster.create_database(name, "dev")
        scratch_cluster.execute("CREATE TABLE item(id int)", database=name, role="dev")
    project = ByHand(tmp_path / "p", "tests/it")
    source = "def test_1(test_connection, e2e_connection):\n    for c in (test_connection, e2e_connection):\n        c.execute('INSERT INTO item VALUES (1)')\n"
    source += "def test_2(test_connection, e2e_connection):\n    counts = [c.execute('SELECT count(*) FROM item').fetchone() for c in (test_connection, e2e_connection)]\n    assert counts == [(0,), (1,)]\n    test_connection.close()\n"
    project.package("tests/it", source)
    done = project.pytest(TEST_DATABASE_URL=scratch_cluster.dsn("dev", "one"), E2E_DATABASE_URL=scratch_cluster.dsn("dev", "two"))
    assert "2 passed" in done.stdout
