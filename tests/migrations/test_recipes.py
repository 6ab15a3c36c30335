"""docs/migrations.md, executed: each recipe's settings and files in a sample repository, with the real tool."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from harness import database, schema
from harness.targets import parse_dsn
from tests.builders import HARNESS_ROOT, SETTINGS, Completed, SampleRepository
from tests.migrations import tools

PAGE = (HARNESS_ROOT / "docs" / "migrations.md").read_text()
REVISION = """
from alembic import op
revision, down_revision = "{0}", {1!r}
def upgrade(): op.execute("{2}")
"""
_BLOCK = re.compile(r"(?:^`(?P<path>[^`\n]+)`\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(heading: str) -> dict[str, str]:
    """Return a recipe's files by path; its settings are harness.toml."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return {
        match["path"] or "harness.toml": match["text"] for match in _BLOCK.finditer(section) if match["path"] or match["language"] == "toml"
    }


class Kitchen:
    """A sample repository with a recipe in it."""

    def __init__(self, repository: SampleRepository) -> None:
        self.repository, self.env = repository, dict[str, str]()

    def follow(self, heading: str, files: Mapping[str, str]) -> None:
        """Write a recipe's settings and files, and the files that a reader would have."""
        (self.repository.root / "migrations/core/0001_base.sql").unlink()
        for path, text in {**blocks(heading), **files}.items():
            self.repository.write(path, text)
        own = blocks(heading)["harness.toml"]
        databases = SETTINGS.split("[[migrations]]")[0]
        self.repository.settings(f"{databases}{own}\n[packages]\ntest = []\n")

    def use(self, *, python: Path | None = None, programs: str | Path = "") -> None:
        """Let commands find Python packages and programs."""
        environment = self.repository.environment()
        if python is not None:
            self.env["PYTHONPATH"] = f"{environment['PYTHONPATH']}:{python}"
        if programs:
            self.env["PATH"] = f"{programs}:{environment['PATH']}"

    def reset(self, *arguments: str, code: int = 0) -> Completed:
        """Reset the test database."""
        return self.repository.run("reset", "--database", "test", *arguments, env=self.env).expect(code)

    def source(self, *arguments: str) -> str:
        """Reset and return where the database came from."""
        done = self.reset("--json", "-", *arguments)
        (found,) = json.loads(done.stdout)["databases"]
        return str(found["source"])

    def tables(self) -> set[str]:
        """Return the tables of the test database."""
        assert self.repository.cluster is not None
        query = "SELECT tablename FROM pg_tables WHERE schemaname !~ '^(pg_|information_schema|pgharness)'"
        return {name for (name,) in self.repository.cluster.execute(query, database="shop_test")}

    def describe(self) -> tuple[str, ...]:
        """Return the schema of the test database."""
        assert self.repository.cluster is not None
        with database.connect(parse_dsn("X", self.repository.cluster.dsn("su", "shop_test")), purpose="test") as connection:
            return schema.describe(connection)

    def serve(self, *tables: str) -> None:
        """Reset cold, warm and cold again: the same schema each time."""
        assert self.source() == "migrated"
        assert set(tables) <= self.tables()
        cold = self.describe()
        assert self.source() == "template"
        assert self.describe() == cold
        assert self.source("--fresh") == "migrated"
        assert self.describe() == cold


@pytest.fixture
def kitchen(sample_repository: SampleRepository) -> Kitchen:
    """Return a sample repository to follow a recipe in."""
    return Kitchen(sample_repository)


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install Django and yoyo."""
    return tools.python_packages(tmp_path_factory.mktemp("python"), "Django", "yoyo-migrations")


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install dbmate."""
    return tools.node_package(tmp_path_factory.mktemp("node"), "dbmate")


def alembic_files() -> dict[str, str]:
    """Return what an alembic project has beside env.py: two revisions."""
    return {
        "alembic.ini": "[alembic]\nscript_location = alembic\n",
        "alembic/versions/one.py": REVISION.format("one", None, "CREATE TABLE from_alembic(v text DEFAULT '50%')"),
        "alembic/versions/two.py": REVISION.format("two", "one", "ALTER TABLE from_alembic ADD w int"),
    }


def test_a_folder_of_sql_with_an_index_built_outside(kitchen: Kitchen) -> None:
    """The first two recipes together."""
    extra = {path: text for path, text in blocks("A statement that must not run in a transaction").items() if path.endswith(".sql")}
    kitchen.follow("A folder of SQL", {"migrations/core/0001_item.sql": "CREATE TABLE item(name text);", **extra})
    kitchen.serve("item")
    assert any(line.startswith("index public.item_name") for line in kitchen.describe())


def test_statements_that_take_a_superuser(kitchen: Kitchen) -> None:
    """A stream as maintenance makes role and extension, again and again."""
    repository = kitchen.repository
    assert repository.cluster is not None
    repository.env_file({"MAINTENANCE_DATABASE_URL": repository.cluster.dsn("su", "postgres")})
    kitchen.follow(
        "Statements that take a superuser", {"migrations/core/0001_item.sql": "CREATE TABLE item(); GRANT SELECT ON item TO app_reader;"}
    )
    kitchen.serve("item")
    assert any(line.startswith("extension file_fdw") for line in kitchen.describe())


def test_alembic(kitchen: Kitchen) -> None:
    """Alembic, with a percent sign in what it does."""
    kitchen.follow("Alembic", alembic_files())
    kitchen.serve("from_alembic", "alembic_version")
    kitchen.repository.write("alembic/versions/three.py", REVISION.format("three", "two", "CREATE TABLE third()"))
    assert kitchen.source() == "migrated"
    assert "third" in kitchen.tables()


def test_django(kitchen: Kitchen, python: Path) -> None:
    """Django's migrate, with its own applications and one of the project's."""
    kitchen.use(python=python)
    kitchen.follow(
        "Django",
        {
            "manage.py": "import os\nos.environ['DJANGO_SETTINGS_MODULE'] = 'shop.settings'\n"
            "from django.core.management import execute_from_command_line\nexecute_from_command_line()\n",
            "requirements.txt": "Django",
            "shop/__init__.py": "",
            "shop/migrations/__init__.py": "",
            "shop/migrations/0001_initial.py": "from django.db import migrations, models\nclass Migration(migrations.Migration):\n"
            "    operations = [migrations.CreateModel('Order', [('id', models.BigAutoField(primary_key=True)), ('total', models.IntegerField())])]\n",
        },
    )
    kitchen.serve("django_migrations", "auth_user", "shop_order")


def test_yoyo(kitchen: Kitchen, python: Path) -> None:
    """Yoyo, by its configuration file."""
    kitchen.use(python=python, programs=python / "bin")
    kitchen.follow("yoyo", {"yoyo/0001_one.sql": "CREATE TABLE from_yoyo(i int);", "yoyo/0001_one.rollback.sql": "DROP TABLE from_yoyo;"})
    kitchen.serve("from_yoyo", "_yoyo_migration")


def test_dbmate(kitchen: Kitchen, node: Path) -> None:
    """Dbmate, from npm."""
    kitchen.use(programs=node)
    kitchen.follow(
        "dbmate",
        {
            "db/migrations/20240101000000_one.sql": "-- migrate:up\nCREATE TABLE from_dbmate(i int);\n-- migrate:down\nDROP TABLE from_dbmate;\n"
        },
    )
    kitchen.serve("from_dbmate", "schema_migrations")


def test_psql(kitchen: Kitchen) -> None:
    """Plain psql, told everything by environment; a failing script fails the reset."""
    kitchen.use(programs=tools.program("psql", "PostgreSQL's client programs"))
    kitchen.follow("psql", {"schema.sql": "\\set v 1\nCREATE TABLE from_psql(i int DEFAULT :v);"})
    kitchen.serve("from_psql")
    kitchen.repository.write("schema.sql", "CREATE TABLE a(i int); SELECT 1/0;")
    assert "division by zero" in kitchen.reset(code=4).stderr


def test_sql_first_then_a_tool(kitchen: Kitchen) -> None:
    """A mixed project resets warm and cold to the same schema."""
    env = {"alembic/env.py": blocks("Alembic")["alembic/env.py"]}
    kitchen.follow(
        "SQL first, then a tool", {"migrations/core/0001_item.sql": "CREATE TABLE item(id int PRIMARY KEY);", **alembic_files(), **env}
    )
    kitchen.serve("item", "from_alembic")


def test_the_application_migrates_its_own_database(kitchen: Kitchen) -> None:
    """`harness.migrate` from an application's own code, on the application's own database."""
    repository = kitchen.repository
    assert repository.cluster is not None
    kitchen.follow(
        "A folder of SQL", {"migrations/core/0001_item.sql": "CREATE TABLE item();", **blocks("The application migrates its own database")}
    )
    env = {**repository.environment(), "DATABASE_URL": repository.dsn("MC_DB_DSN")}
    for expected in ("['core/0001_item.sql']\n", "[]\n"):
        done = subprocess.run([sys.executable, "start.py"], cwd=repository.root, env=env, capture_output=True, text=True, check=True)
        assert done.stdout == expected


MIG_07 = {
    "a) a .env that does not override": ("from dotenv import load_dotenv\nload_dotenv()\n", 'os.environ["DATABASE_URL"]', 0),
    "b) a .env that overrides": ("from dotenv import load_dotenv\nload_dotenv(override=True)\n", 'os.environ["DATABASE_URL"]', 4),
    "c) a URL in alembic.ini": ("", 'context.config.get_main_option("sqlalchemy.url")', 4),
}


@pytest.mark.parametrize(("first", "url", "code"), MIG_07.values(), ids=MIG_07)
def test_a_tool_that_takes_its_database_from_elsewhere(kitchen: Kitchen, first: str, url: str, code: int) -> None:
    """MIG-07: a tool that migrates the application's database is found out although it said success."""
    repository = kitchen.repository
    shop = repository.dsn("MC_DB_DSN").replace("postgresql://", "postgresql+psycopg://")
    kitchen.follow("Alembic", alembic_files())
    repository.write(".env", f"DATABASE_URL={shop}\n")
    repository.write("alembic.ini", f"[alembic]\nscript_location = alembic\nsqlalchemy.url = {shop}\n")
    repository.write("alembic/env.py", first + blocks("Alembic")["alembic/env.py"].replace('os.environ["DATABASE_URL"]', url))
    done = kitchen.reset(code=code)
    assert repository.cluster is not None
    in_shop = repository.cluster.execute("SELECT 1 FROM pg_tables WHERE tablename = 'from_alembic'", database="shop")
    assert bool(in_shop) == bool(code)
    if code:
        assert "changed the application's database 'shop', and left the test database unchanged" in done.stderr
        assert repository.cluster.oid("shop_test") is None
    else:
        assert "from_alembic" in kitchen.tables()
