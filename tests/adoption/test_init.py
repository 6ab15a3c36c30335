"""`harness init`: what it sees in a repository, what it writes, and what it leaves alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import onboarding, requirements, settings
from harness.errors import UsageError
from harness.onboarding import REQUIREMENTS
from harness.requirements import source_line
from harness.settings import BOOTSTRAP
from harness.survey import Found, survey
from harness.terrain import Terrain, top
from tests.adoption.adopter import Adopter
from tests.builders import HARNESS_ROOT

WRITTEN = ["harness.toml", "tasks.py", BOOTSTRAP, REQUIREMENTS, ".gitignore"]


def laid(root: Path, files: dict[str, str]) -> Terrain:
    """Write a repository's files and return it as init sees it."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Terrain(root)


def loaded(root: Path, found: Found) -> settings.Settings:
    """Return what the harness reads back from the harness.toml for `found`."""
    (root / "harness.toml").write_text(onboarding.harness_toml(found))
    return settings.load(root)


PACKAGES: dict[str, tuple[dict[str, str], list[tuple[str, str]]]] = {
    "tests directly in the folder": ({"tests/test_a.py": "", "tests/unit/test_b.py": ""}, [("tests", "test")]),
    "a folder per package, e2e last": (
        {"tests/e2e/test_a.py": "", "tests/orders/test_b.py": "", "tests/stock/deep/test_c.py": "", "tests/conftest.py": ""},
        [("tests/orders", "test"), ("tests/stock", "test"), ("tests/e2e", "e2e")],
    ),
    "a folder named test": ({"test/test_a.py": ""}, [("test", "test")]),
    "e2e beside tests": ({"e2e/test_a.py": "", "tests/test_b.py": ""}, [("tests", "test"), ("e2e", "e2e")]),
    "tests inside applications": (
        {"shop/tests/test_a.py": "", "stock/tests/test_b.py": ""},
        [("shop/tests", "test"), ("stock/tests", "test")],
    ),
    "testpaths of pyproject.toml": (
        {"pyproject.toml": '[tool.pytest.ini_options]\ntestpaths = ["spec"]\n', "spec/test_a.py": "", "tests/test_b.py": ""},
        [("spec", "test")],
    ),
    "python_files of pytest.ini": (
        {"pytest.ini": "[pytest]\npython_files = check_*.py\n", "tests/check_a.py": "", "tests/test_b.py": ""},
        [("tests", "test")],
    ),
    "what others left is passed over": (
        {"tests/test_a.py": "", "node_modules/x/tests/test_b.py": "", "env/lib/test_c.py": "", ".tox/tests/test_d.py": ""},
        [("tests", "test")],
    ),
    "Go": ({"go.mod": "module shop\n"}, [(".", "test")]),
    "Node": ({"package.json": '{"name": "@acme/shop", "scripts": {"test": "node --test"}}'}, [(".", "test")]),
    "nothing": ({"README.md": ""}, []),
}


@pytest.mark.parametrize(("files", "expected"), PACKAGES.values(), ids=PACKAGES)
def test_packages_are_found(files: dict[str, str], expected: list[tuple[str, str]], tmp_path: Path) -> None:
    """Each folder of tests is a package; one named for end-to-end tests gets the other database."""
    found = survey(laid(tmp_path, files))
    assert [(package.path, package.role) for package in found.packages] == expected
    assert [package[:4] for package in loaded(tmp_path, found).packages] == [package[:4] for package in found.packages]


ENV_PY = 'import os\nurl = os.environ["SHOP_DB_URL"]\n'
STREAMS: dict[str, tuple[dict[str, str], list[dict[str, Any]]]] = {
    "numbered SQL in a folder": ({"migrations/0001_a.sql": ""}, [{"name": "core", "directory": "migrations"}]),
    "a folder per stream": (
        {"migrations/platform/0001_a.sql": "", "migrations/billing/0001_a.sql": ""},
        [{"name": "billing", "directory": "migrations/billing"}, {"name": "platform", "directory": "migrations/platform"}],
    ),
    "dbmate": ({"db/migrations/20260101_a.sql": "-- migrate:up\n"}, [{"name": "core", "directory": "db/migrations"}]),
    "Flyway": ({"src/main/resources/db/migration/V1__a.sql": ""}, [{"directory": "src/main/resources/db/migration"}]),
    "alembic": (
        {
            "alembic.ini": "[alembic]\nscript_location = %(here)s/alembic\n",
            "alembic/env.py": ENV_PY,
            "requirements.txt": "sqlalchemy\npsycopg[binary]>=3",
        },
        [
            {
                "command": ("alembic", "upgrade", "head"),
                "variable": "SHOP_DB_URL",
                "scheme": "postgresql+psycopg",
                "inputs": ("alembic.ini", "alembic/**/*.py"),
            }
        ],
    ),
    "alembic below": (
        {"backend/alembic.ini": "[alembic]\nscript_location = migrations\n", "backend/migrations/env.py": "postgresql+asyncpg://"},
        [{"name": "backend", "command": ("alembic", "-c", "backend/alembic.ini", "upgrade", "head"), "scheme": "postgresql+asyncpg"}],
    ),
    "Django": (
        {"manage.py": "import django", "shop/migrations/0001_initial.py": "", "requirements.txt": "django"},
        [{"command": ("python", "manage.py", "migrate", "--noinput"), "inputs": ("manage.py", "requirements.txt", "shop/migrations/*.py")}],
    ),
    "yoyo, whose SQL is its own": (
        {"yoyo.ini": "[DEFAULT]\nsources = migrations\n", "migrations/0001.a.sql": ""},
        [{"name": "yoyo", "command": ("yoyo", "apply", "--batch"), "inputs": ("yoyo.ini", "migrations/*")}],
    ),
    "numbered SQL of the tests' own": ({"tests/data/migrations/0001_a.sql": ""}, []),
    "numbered SQL that is no migration": ({"reports/2024_sales.sql": ""}, []),
}


@pytest.mark.parametrize(("files", "expected"), STREAMS.values(), ids=STREAMS)
def test_migrations_are_found(files: dict[str, str], expected: list[dict[str, Any]], tmp_path: Path) -> None:
    """Each tool is known by the files that it keeps; what is written loads again as what was found."""
    found = survey(laid(tmp_path, files))
    streams = [stream._asdict() for stream in found.streams]
    assert [{key: stream[key] for key in wanted} for stream, wanted in zip(streams, expected, strict=True)] == expected
    assert loaded(tmp_path, found).streams == found.streams


def test_a_folder_that_no_stream_would_take_is_told(tmp_path: Path) -> None:
    """Two files with one number are left out with the reason that a reset would give."""
    found = survey(laid(tmp_path, {"migrations/0001_a.sql": "", "migrations/0001_b.sql": ""}))
    assert found.streams == ()
    assert any("the same number" in note for note in found.notes)


DATABASES: dict[str, tuple[dict[str, str], dict[str, tuple[str, str]]]] = {
    "the project's name": (
        {"pyproject.toml": '[project]\nname = "My-Shop"\n'},
        {"application": ("my_shop", "MC_DB_DSN"), "test": ("my_shop_test", "TEST_DATABASE_URL")},
    ),
    "a DSN in .env": (
        {".env": "export DATABASE_URL='postgres://u:secret@h/shop'\n"},
        {"application": ("shop", "DATABASE_URL"), "test": ("shop_test", "TEST_DATABASE_URL")},
    ),
    "two DSNs": (
        {".env.example": "DB_URL=postgresql://h/shop\nDB_URL_TEST=postgresql://h/shop\n"},
        {"application": ("shop", "DB_URL"), "test": ("shop_test", "DB_URL_TEST")},
    ),
    "a compose file": (
        {"compose.yaml": "image: postgres:16\nenvironment:\n  POSTGRES_DB: orders\n"},
        {"application": ("orders", "MC_DB_DSN")},
    ),
    "an e2e package": ({"e2e/test_a.py": "", "go.mod": "", ".env": "A=postgresql://h/shop"}, {"e2e": ("shop_e2e", "E2E_DATABASE_URL")}),
    "another database altogether": (
        {".env": "DATABASE_URL=mysql://h/shop", "package.json": '{"name": "web"}'},
        {"application": ("web", "MC_DB_DSN")},
    ),
    "a name that is none": (
        {".env": "DATABASE_URL=postgres://h/${NAME}", "package.json": '{"name": "7"}'},
        {"application": ("app_7", "DATABASE_URL")},
    ),
}


@pytest.mark.parametrize(("files", "expected"), DATABASES.values(), ids=DATABASES)
def test_databases_are_named_as_they_are(files: dict[str, str], expected: dict[str, tuple[str, str]], tmp_path: Path) -> None:
    """Names and variables are those in use, and no value is kept."""
    found = survey(laid(tmp_path, files))
    databases = {database.role: (database.name, database.variable) for database in found.databases}
    assert {role: databases[role] for role in expected} == expected
    assert loaded(tmp_path, found).databases == found.databases
    assert "secret" not in repr(found)


VARIABLES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "a DSN": ({"tests/conftest.py": 'os.environ["SHOP_DATABASE_URL"]'}, {"SHOP_DATABASE_URL": "{url}"}),
    "a driver's DSN": ({"tests/conftest.py": 'os.getenv("DB_DSN", "postgresql+psycopg2://h/d")'}, {"DB_DSN": "{url:postgresql+psycopg2}"}),
    "parts": (
        {"shop/settings.py": "\n".join(f'os.environ.get("POSTGRES_{part}")' for part in ("DB", "USER", "PASSWORD", "HOST", "PORT"))},
        {
            "POSTGRES_DB": "{name}",
            "POSTGRES_USER": "{user}",
            "POSTGRES_PASSWORD": "{password}",
            "POSTGRES_HOST": "{host}",
            "POSTGRES_PORT": "{port}",
        },
    ),
    "an engine": ({"tests/__init__.py": 'os.environ.get("DB", "sqlite") == "postgres"'}, {"DB": "postgres"}),
    "the application's, which the code under test reads": (
        {".env": "DATABASE_URL=postgresql+asyncpg://h/shop"},
        {"DATABASE_URL": "{url:postgresql+asyncpg}"},
    ),
    "Django's settings": (
        {"tests/conftest.py": 'os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"'},
        {"DJANGO_SETTINGS_MODULE": "tests.settings"},
    ),
    "ours alone": ({"tests/conftest.py": 'os.environ["TEST_DATABASE_URL"]', ".env": "DATABASE_URL=postgresql://h/shop"}, {}),
    "other servers'": ({"tests/conftest.py": 'os.environ["REDIS_URL"], os.environ["MYSQL_DB_URL"]'}, {}),
}


@pytest.mark.parametrize(("files", "expected"), VARIABLES.values(), ids=VARIABLES)
def test_the_variables_that_tests_read_get_their_database(files: dict[str, str], expected: dict[str, str], tmp_path: Path) -> None:
    """A suite finds its database under the names that it reads already."""
    found = survey(laid(tmp_path, {"tests/test_a.py": "", **files}))
    assert dict(found.environment) == expected
    assert loaded(tmp_path, found).environment == found.environment


@pytest.mark.parametrize(
    ("text", "expected"),
    [("CREATE DATABASE x", True), ("if mysql:\n    CREATE DATABASE x", False), ("DJANGO_SETTINGS_MODULE", True), ("SELECT 1", False)],
)
def test_suites_that_make_databases_may(text: str, expected: bool, tmp_path: Path) -> None:  # noqa: FBT001  # a table's column
    """`createdb` is asked for where tests create databases, and nowhere else."""
    found = survey(laid(tmp_path, {"tests/test_a.py": "", "tests/conftest.py": text}))
    assert found.createdb is expected
    assert loaded(tmp_path, found).stack.createdb is expected


def test_the_requirements_are_the_projects_own(tmp_path: Path) -> None:
    """The harness, the project with the extras of its tests, and its dependency group, groups within it included."""
    pyproject = """
[project]
name = "my-shop"
[project.optional-dependencies]
web = []
[dependency-groups]
base = ["httpx"]
test = ["My_Shop[web]", "pytest>=8", {include-group = "base"}, {include-group = "test"}]
"""
    terrain = laid(tmp_path, {"pyproject.toml": pyproject, "requirements.txt": "", "requirements-dev.txt": "", "tests/test_a.py": ""})
    lines = requirements.text(terrain, survey(terrain), "pgharness==1").splitlines()[1:]
    assert lines == ["pgharness==1", "pytest>=8", "httpx", "-r ../requirements.txt", "-r ../requirements-dev.txt", "-e .[web]"]


POETRY = """
[tool.poetry]
name = "shop"
[tool.poetry.dependencies]
python = "^3.11"
httpx = "^0.27"
[tool.poetry.group.test.dependencies]
pytest = "^8"
Pytest_Cov = {version = "^5", extras = ["toml"]}
numpy = "*"
ours = {path = "libs/ours", develop = true}
theirs = {git = "https://git.example/theirs.git", tag = "v1"}
wheel = {url = "https://files.example/wheel.whl"}
[tool.poetry.group.dev.dependencies]
ruff = "*"
"""
LOCK = """
package = [
  {name = "pytest", version = "8.1.2"}, {name = "pytest-cov", version = "5.0.1"},
  {name = "numpy", version = "1.26"}, {name = "numpy", version = "2.1"}, {name = "httpx", version = "0.27.2"},
]
"""


def test_poetrys_group_goes_by_its_lock(tmp_path: Path) -> None:
    """Each in its locked version; where that is one of several, or there is no lock, pip chooses."""
    terrain = laid(tmp_path / "locked", {"pyproject.toml": POETRY, "poetry.lock": LOCK, "tests/test_a.py": ""})
    rest = ["-e ./libs/ours", "theirs @ git+https://git.example/theirs.git@v1", "wheel @ https://files.example/wheel.whl"]
    lines = requirements.text(terrain, survey(terrain), "pgharness==1").splitlines()[1:]
    assert lines == ["pgharness==1", "pytest==8.1.2", "Pytest_Cov[toml]==5.0.1", "numpy", *rest, "-e ."]
    terrain = laid(tmp_path / "free", {"pyproject.toml": POETRY, "tests/test_a.py": ""})
    lines = requirements.text(terrain, survey(terrain), "pgharness==1").splitlines()[1:]
    assert lines == ["pgharness==1", "pytest", "Pytest_Cov[toml]", "numpy", *rest, "-e ."]


def test_a_poetry_project_that_is_no_package_gets_its_dependencies(tmp_path: Path) -> None:
    """It cannot be installed itself; the older name of its group counts too."""
    text = '[tool.poetry]\npackage-mode = false\n[tool.poetry.dependencies]\npython = "*"\nhttpx = "*"\n[tool.poetry.dev-dependencies]\npytest = "*"\n'
    terrain = laid(tmp_path, {"pyproject.toml": text, "tests/test_a.py": ""})
    assert requirements.text(terrain, survey(terrain), "pgharness==1").splitlines()[1:] == ["pgharness==1", "httpx", "pytest"]


def test_dry_run_writes_nothing_and_shows_all(adopter: Adopter) -> None:
    """What would be written is shown whole; a script by its first lines."""
    adopter.write("tests/test_a.py", "")
    done = adopter.harness("init", "--dry-run", "--source", "pgharness==1").expect(
        0, 'test = ["tests"]', "from harness.tasks import *", "/test/.env", "pgharness==1"
    )
    assert done.stdout.splitlines()[-1] == "nothing was written; next: harness init"
    assert "harness.toml would be written" in done.stdout.splitlines()
    assert [path.name for path in adopter.root.iterdir()] == ["tests"]


def test_what_is_written_is_enough_and_is_written_once(adopter: Adopter) -> None:
    """The files are there, the script is this repository's and can be run, and a second time changes nothing."""
    adopter.write("tests/orders/test_a.py", "")
    adopter.write("migrations/0001_a.sql", "CREATE TABLE a();")
    adopter.write("pyproject.toml", '[project]\nname = "shop"\n')
    done = adopter.harness("init", "--source", "pgharness==1", cwd=adopter.root / "tests/orders").expect(0)
    assert done.stdout.splitlines()[-1].endswith(f"next: {BOOTSTRAP}")
    before = {path: adopter.read(path) for path in WRITTEN}
    assert before[BOOTSTRAP] == (HARNESS_ROOT / BOOTSTRAP).read_text()
    assert os.access(adopter.root / BOOTSTRAP, os.X_OK)
    again = adopter.harness("init", "--source", "pgharness==2").expect(0)
    assert [line for line in again.stdout.splitlines() if "stays as it is" in line] == [f"{path} stays as it is" for path in WRITTEN]
    assert {path: adopter.read(path) for path in WRITTEN} == before


def test_nothing_of_the_users_is_changed(adopter: Adopter) -> None:
    """Own files stay, byte for byte; tasks.py and .gitignore get the lines that they lack and keep their line ends."""
    own = '"""Ours."""\nfrom __future__ import annotations\n\nfrom invoke import task\n\n\n@task\ndef test(c):\n    pass\n'
    texts = {"harness.toml": "# mine\n", BOOTSTRAP: "#!/bin/sh\n", REQUIREMENTS: "# mine\n"}
    for path, text in texts.items():
        adopter.write(path, text)
    (adopter.root / "tasks.py").write_bytes(own.replace("\n", "\r\n").encode())
    (adopter.root / ".gitignore").write_bytes(b".venv\n*.log")
    done = adopter.harness("init").expect(
        0, "its own test hides the harness's, which is `harness test`", "remove it and run `harness init` again"
    )
    assert {path: adopter.read(path) for path in texts} == texts
    lines = own.splitlines()
    lines.insert(2, "from harness.tasks import *  # noqa: F403")
    assert (adopter.root / "tasks.py").read_bytes().decode().split("\r\n")[:-1] == lines
    assert (adopter.root / ".gitignore").read_bytes() == b".venv\n*.log\n/test/.env\n/test/.stack/\n"
    assert "tasks.py gets 1 more line" in done.stdout


OTHER_TASKS = {
    "another tool's": ("from celery import shared_task\n", "it is not Invoke's"),
    "a collection": ("from invoke import Collection\nns = Collection()\n", "a collection of its own"),
    "broken": ("import invoke\ndef (:\n", "line 2 is no Python"),
    "ours already": ("from harness.tasks import *\n", "stays as it is"),
}


@pytest.mark.parametrize(("text", "said"), OTHER_TASKS.values(), ids=OTHER_TASKS)
def test_a_tasks_file_that_cannot_take_the_line_is_told(text: str, said: str, adopter: Adopter) -> None:
    """It stays as it is, with the reason and the other way."""
    adopter.write("tasks.py", text)
    adopter.harness("init").expect(0, said)
    assert adopter.read("tasks.py") == text


def test_the_document_says_what_was_found_and_written(adopter: Adopter) -> None:
    """A program reads the same as a person."""
    adopter.write("tests/test_a.py", "")
    document = json.loads(adopter.harness("init", "--dry-run", "--json", "-").expect(0).stdout)
    assert (document["command"], document["exit"], document["root"]) == ("init", 0, str(adopter.root))
    assert [(file["path"], file["action"]) for file in document["files"]] == [(path, "write") for path in WRITTEN]
    assert document["found"]["packages"][0]["path"] == "tests"
    assert document["next"] == "harness init"


def test_a_folder_that_cannot_be_written_is_told(adopter: Adopter) -> None:
    """What stands in the way is named; it is no bug."""
    adopter.write("test", "a file where the folder would be")
    done = adopter.harness("init").expect(2, "test/bootstrap-stack.sh", "run `harness init` again")
    assert "Traceback" not in done.stderr


def test_sources(tmp_path: Path) -> None:
    """A path within the repository is relative, one outside a URL; URLs and requirements are as they are given; the rest is refused."""
    inside, outer = tmp_path / "shop/vendor/x.whl", tmp_path / "a b.whl"
    inside.parent.mkdir(parents=True)
    inside.touch()
    outer.touch()
    root = tmp_path / "shop"
    assert source_line(root, str(inside)) == "./vendor/x.whl"
    assert source_line(root, str(outer)) == f"pgharness @ file://{tmp_path}/a%20b.whl"
    assert source_line(root, "git+https://h/x.git@v1") == "pgharness @ git+https://h/x.git@v1"
    for requirement in ("pgharness", "pgharness==1.2", "pgharness[embedded] >= 1", "pgharness @ https://h/x.whl"):
        assert source_line(root, requirement) == requirement
    assert source_line(root, "").startswith("pgharness")
    for wrong in ("nowhere/x.whl", "other==1"):
        with pytest.raises(UsageError, match="--source"):
            source_line(root, wrong)


def test_the_project_is_the_nearest_one_within_the_worktree(tmp_path: Path) -> None:
    """From a folder below, the project's own top counts; where nothing says project, the folder itself."""
    (tmp_path / "shop/a/b").mkdir(parents=True)
    assert top(tmp_path / "shop/a/b") == tmp_path / "shop/a/b"
    (tmp_path / "shop/go.mod").touch()
    assert top(tmp_path / "shop/a/b") == tmp_path / "shop"


SHELLS = [
    shell
    for shell in ("bash", "zsh")
    if subprocess.run(["/bin/sh", "-c", f"command -v {shell}"], capture_output=True, check=False).returncode == 0
]


@pytest.mark.parametrize("shell", SHELLS)
def test_aliases_find_the_current_worktrees_inv(shell: str, make_adopter: Callable[[str], Adopter]) -> None:
    """The same alias runs each worktree's own inv, from any folder in it, argument by argument; outside it says what to do."""
    adopters = [make_adopter("one"), make_adopter("the other one")]
    for adopter in adopters:
        inv = adopter.write(".venv/bin/inv", f'#!/bin/sh\nprintf "%s\\n" "{adopter.root.name}" "$@"\n')
        inv.chmod(0o755)
        (adopter.root / "deep/er").mkdir(parents=True)
    lines = adopters[0].harness("aliases", "--prefix", "my").expect(0).stdout
    expand = "shopt -s expand_aliases\n" if shell == "bash" else ""
    for adopter in adopters:
        script = adopter.write("script", f"{expand}{lines}\nmye2e -- 'a b'\n")
        done = adopter.run(shell, script, cwd=adopter.root / "deep/er").expect(0)
        assert done.stdout.splitlines() == [adopter.root.name, "test", "--e2e", "--", "a b"]
        done = adopter.run(shell, script, cwd=adopter.root.parent).expect(2, "bootstrap-stack.sh")


@pytest.mark.parametrize("shell", SHELLS)
def test_tasks_and_flags_are_completed(shell: str, adopter: Adopter) -> None:
    """A TAB after `inv` and after the alias asks the worktree's own inv, which is this one's here."""
    adopter.write("tasks.py", "from harness.tasks import *\n")
    inv = adopter.write(".venv/bin/inv", f'#!/bin/sh\nPYTHONPATH="{HARNESS_ROOT}" exec "{sys.executable}" -m invoke "$@"\n')
    inv.chmod(0o755)
    lines = adopter.harness("aliases", "--prefix", "my").expect(0).stdout
    ask = {
        "bash": 'COMP_WORDS=(myinv {words}); _my_inv_complete myinv {last}; printf "%s\\n" "${{COMPREPLY[@]}}"; complete -p myinv\n',
        "zsh": "read() {{ _harness_words=(myinv {words}); }}; _my_inv_complete; print -l -- $reply\n",
    }[shell]
    for words, wanted in (("stack-", "stack-up"), ("test --fail", "--fail-fast")):
        script = adopter.write("script", lines + ask.format(words=words, last=words.split()[-1]))
        assert wanted in adopter.run(shell, script).expect(0).stdout.splitlines()
