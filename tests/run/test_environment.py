"""G6, G7: what a package sees, and what it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.targets import HIDDEN
from tests.run.driver import PASSWORD
from tests.run.project import Project

DUMP = "import json, os, pathlib\ndef test_it(): pathlib.Path(__file__).with_suffix('.json').write_text(json.dumps(dict(os.environ)))\n"


def seen_by(project: Project, path: str, *arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Run and return the environment that the package's test saw."""
    project.package(path, DUMP)
    project.run(*arguments, env=env).expect(0)
    found: dict[str, Any] = json.loads((project.root / path / "test_it.json").read_text())
    return found


def test_a_package_sees_its_own_database_alone(tmp_path: Path) -> None:
    """The application's variable leads nowhere and says so; the other class's and the maintenance variable are gone."""
    project = Project(
        tmp_path / "p",
        "tests/it",
        toml='[environment]\nDATABASE_URL = "{url:postgresql+psycopg}"\nWHERE = "{host}|{port}|{user}|{name}|{x}"\n',
    )
    found = seen_by(
        project, "tests/it", env={"E2E_DATABASE_URL": "postgresql://x", "MAINTENANCE_DATABASE_URL": "postgresql://y", "MC_DB_DSN": "z"}
    )
    assert found["MC_DB_DSN"] == HIDDEN
    assert found["TEST_DATABASE_URL"] == f"postgresql://app_test:{PASSWORD}@nobody.invalid:1/app_test"
    assert found["DATABASE_URL"] == f"postgresql+psycopg://app_test:{PASSWORD}@nobody.invalid:1/app_test"
    assert found["WHERE"] == "nobody.invalid|1|app_test|app_test|{x}"
    assert {"E2E_DATABASE_URL", "MAINTENANCE_DATABASE_URL"} & set(found) == set()


def test_an_e2e_package_sees_the_e2e_database_alone(tmp_path: Path) -> None:
    """The same, the other way round."""
    project = Project(tmp_path / "p")
    project.settings(
        '[databases]\napplication = "a"\ntest = "t"\ne2e = "e"\n[packages]\ne2e = ["tests/it"]\n[environment]\nTHE_URL = "{url}"\n'
    )
    found = seen_by(project, "tests/it", "--e2e")
    assert found["E2E_DATABASE_URL"] == found["THE_URL"] == f"postgresql://e:{PASSWORD}@nobody.invalid:1/e"
    assert "TEST_DATABASE_URL" not in found


def test_what_steers_libpq_git_or_pytest_from_outside_is_gone(tmp_path: Path) -> None:
    """PGHOSTADDR beats a URL's host, GIT_DIR misleads every git call, PYTEST_ADDOPTS changes the selection."""
    outer = {
        "PGHOSTADDR": "127.0.0.1",
        "PGSERVICE": "x",
        "GIT_DIR": "/x",
        "PYTEST_ADDOPTS": "-v",
        "PYTEST_XDIST_WORKER": "gw0",
        "HARNESS_OUTCOMES": "/nowhere",
        "MINE": "kept",
    }
    found = seen_by(Project(tmp_path / "p", "tests/it"), "tests/it", env=outer)
    assert [name for name in found if name.startswith(("PG", "GIT_", "HARNESS_")) and name != "HARNESS_RUN"] == []
    assert {"PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"} & set(found) == set()
    assert (found["MINE"], found["PYTHONDONTWRITEBYTECODE"]) == ("kept", "1")


def test_our_own_settings_come_last(tmp_path: Path) -> None:
    """[environment] may set what the lines above it took away."""
    found = seen_by(Project(tmp_path / "p", "tests/it", toml='[environment]\nPGOPTIONS = "-c x=y"\nMC_DB_DSN = "{url}"\n'), "tests/it")
    assert found["PGOPTIONS"] == "-c x=y"
    assert found["MC_DB_DSN"] == found["TEST_DATABASE_URL"]


def test_a_command_caches_nothing_either(tmp_path: Path) -> None:
    """Go's test cache is off, its packages run one at a time, Python's bytecode is fresh; it runs in its folder."""
    project = Project(tmp_path / "p", '{ path = "tests/go", command = ["sh", "run.sh"] }')
    project.write(
        "tests/go/run.sh", 'echo "<$GOFLAGS> <$PYTHONDONTWRITEBYTECODE> <$(basename "$PWD")>"; test -n "$PYTHONPYCACHEPREFIX"; echo "$@"\n'
    )
    project.run("--", "-run", "a b", env={"GOFLAGS": "-mod=mod"}).expect(0, "<-mod=mod -count=1 -p=1> <1> <go>", "-run a b")


def test_a_command_finds_this_environments_tools(tmp_path: Path) -> None:
    """Another worktree's activated environment would test that worktree's code."""
    project = Project(tmp_path / "p", '{ path = "tests/it", command = ["sh", "run.sh"] }')
    project.write("tests/it/run.sh", 'test "$(command -v python)" = "$VIRTUAL_ENV/bin/python" && echo "$VIRTUAL_ENV"\n')
    done = project.run(env={"VIRTUAL_ENV": "/somewhere/else"}).expect(0)
    assert "/somewhere/else" not in done.stdout


@pytest.mark.parametrize(
    "source",
    [
        "from dotenv import load_dotenv\nload_dotenv('.env', override=True)\n",
        "import dotenv\ndotenv.load_dotenv(override=True)\n",
        "import os\nfrom dotenv import dotenv_values\nos.environ.update(dotenv_values('.env'))\n",
    ],
    ids=["from", "module", "update"],
)
def test_a_conftest_that_overrides_the_environment_is_found_before(tmp_path: Path, source: str) -> None:
    """A warning with file and variable stands before the first package, and the summary does not call the run isolated."""
    project = Project(tmp_path / "p", "tests/it")
    project.package("tests/it", "import os\ndef test_it(): assert 'prod' in os.environ['MC_DB_DSN']\n")
    project.write("tests/conftest.py", source)
    project.write(".env", "MC_DB_DSN=postgresql://prod/prod\n")
    done = project.run().expect(0)
    before, _, after = done.stdout.partition("[1/1] tests/it")
    assert "warning: tests/conftest.py:" in before
    assert "MC_DB_DSN" in before
    assert "tests/it set MC_DB_DSN to another value" in after
    assert "not isolated: tests/conftest.py:" in after.splitlines()[-1]


def test_a_conftest_that_only_fills_gaps_is_left_alone(tmp_path: Path) -> None:
    """load_dotenv without override sets nothing that is set."""
    project = Project(tmp_path / "p", "tests/it")
    project.package("tests/it", "def test_it(): pass\n")
    project.write("tests/conftest.py", "import dotenv\ndotenv.load_dotenv('.env')\ndotenv.load_dotenv(override=False)\n")
    project.write(".env", "MC_DB_DSN=postgresql://prod/prod\n")
    done = project.run().expect(0)
    assert "warning" not in done.stdout
    assert "isolated" not in done.stdout


def test_a_conftest_that_gives_the_application_our_own_database_is_fine(tmp_path: Path) -> None:
    """Code under test that reads the application's variable is often handed the test database."""
    project = Project(tmp_path / "p", "tests/it")
    project.package("tests/it", "def test_it(): pass\n")
    project.write("tests/conftest.py", "import os\nos.environ['MC_DB_DSN'] = os.environ['TEST_DATABASE_URL']\n")
    assert "warning" not in project.run().expect(0).stdout
