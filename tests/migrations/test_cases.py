"""MIG-01 to MIG-06 of the field cases, from the command line: what a user sees, and what stays untouched."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness import sql
from tests.builders import SampleRepository, Sentinel, assert_fresh, untouched

TABLES = {"public.item"}


@pytest.fixture
def shop(sample_repository: SampleRepository) -> Iterator[SampleRepository]:
    """Return the fixture of the cases: databases made once, and the application's watched."""
    assert sample_repository.cluster is not None
    sample_repository.run("reset").expect(0)
    with Sentinel(sample_repository.cluster, roles=frozenset({"app_reader"})):
        yield sample_repository


def oid(shop: SampleRepository) -> int | None:
    """Return the oid of the test database."""
    assert shop.cluster is not None
    return shop.cluster.oid("shop_test")


def test_mig_01_without_the_mark(shop: SampleRepository) -> None:
    """A concurrent index in a transaction ends the run before any test, with place, state and mark."""
    shop.migration("0003_i.sql", "CREATE INDEX CONCURRENTLY i1 ON item(id);")
    done = shop.run("test").expect(4, "stream 'core'", "0003_i.sql:1:1", "25001", sql.MARK)
    assert "tests/orders" not in done.stdout


def test_mig_01_with_the_mark(shop: SampleRepository) -> None:
    """The same under the mark, and the enum's new value in the file after."""
    before = oid(shop)
    shop.migration("0002_t.sql", "CREATE TYPE st AS ENUM ('a'); CREATE TABLE t(id int, s st);")
    shop.migration("0003_i.sql", f"{sql.MARK}\nCREATE INDEX CONCURRENTLY i1 ON t(id);\nCREATE INDEX CONCURRENTLY i2 ON t(s);\nVACUUM t;")
    shop.migration("0004_v.sql", "ALTER TYPE st ADD VALUE 'b';")
    shop.migration("0005_d.sql", "ALTER TABLE t ALTER s SET DEFAULT 'b'; INSERT INTO t(id) VALUES (1);")
    shop.run("reset").expect(0)
    assert shop.cluster is not None
    assert_fresh(shop.cluster, "shop_test", before=before, tables={*TABLES, "public.t"})
    assert shop.cluster.execute("SELECT indisvalid FROM pg_index WHERE indrelid = 't'::regclass", database="shop_test") == [
        (True,),
        (True,),
    ]


@pytest.mark.parametrize(
    ("text", "command"),
    [("\\connect postgres\nCREATE TABLE stray(i int);", "\\connect"), ("\\! touch pwned", "\\!"), ("\\i other.sql", "\\i")],
)
def test_mig_03_psql_commands(shop: SampleRepository, text: str, command: str) -> None:
    """Nothing of psql's is obeyed, and the message names it."""
    shop.write("other.sql", "CREATE TABLE stray(i int);")
    shop.migration("0002_x.sql", text)
    assert shop.cluster is not None
    with untouched(shop.cluster, "shop_test"):
        shop.run("reset").expect(4, "0002_x.sql:1:1", f"psql command {command};")
    assert not (shop.root / "pwned").exists()
    for name in ("shop", "shop_test", "postgres"):
        assert shop.cluster.execute("SELECT 1 FROM pg_tables WHERE tablename = 'stray'", database=name) == []


def test_mig_04_roles_survive_the_drop(shop: SampleRepository) -> None:
    """An unguarded role fails the second reset; the advice says whose it is; the guarded one works for ever."""
    assert shop.cluster is not None
    shop.env_file({variable: shop.dsn(variable, "su") for variable in ("TEST_DATABASE_URL", "MAINTENANCE_DATABASE_URL")})
    arguments = ("reset", "--database", "test", "--fresh")
    shop.migration("0002_role.sql", "CREATE ROLE app_reader; GRANT SELECT ON item TO app_reader;")
    shop.run(*arguments).expect(0)
    with untouched(shop.cluster, "shop_test"):
        shop.run(*arguments).expect(4, "0002_role.sql:1:1", "42710", "Roles belong to the cluster and survive the drop")
    guarded = "IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'app_reader') THEN CREATE ROLE app_reader; END IF;"
    shop.migration("0002_role.sql", f"DO $$ BEGIN {guarded} END $$; GRANT SELECT ON item TO app_reader;")
    for _ in range(2):
        shop.run(*arguments).expect(0)


def test_mig_04_extensions(shop: SampleRepository) -> None:
    """A trusted one works for the ordinary role; another says superuser; one that is not there is named with its package."""
    shop.migration("0002_trgm.sql", "CREATE EXTENSION IF NOT EXISTS pg_trgm;")
    shop.run("reset").expect(0)
    shop.migration("0003_fdw.sql", "CREATE EXTENSION file_fdw;")
    shop.run("test").expect(4, "0003_fdw.sql:1:1", "file_fdw", "superuser")
    shop.migration("0003_fdw.sql", "CREATE EXTENSION no_such_extension;")
    assert shop.cluster is not None
    with untouched(shop.cluster, "shop_test"):
        shop.run("reset").expect(4, "0003_fdw.sql:1", "no_such_extension")


def test_mig_05_numeric_order(shop: SampleRepository) -> None:
    """The order is the numbers', whatever their width, in every locale; gaps and capitals are fine."""
    names = ["2_a.sql", "9_b.sql", "10_c.SQL", "0012_d.sql", "9999_e.sql", "10000_f.Sql"]
    shop.migration(names[0], "CREATE TABLE a(c1 int);")
    for number, name in enumerate(names[1:], 2):
        shop.migration(name, f"ALTER TABLE a RENAME c{number - 1} TO c{number};")
    for locale in ("C", "C.UTF-8"):
        shop.run("reset", "--fresh", env={"LC_ALL": locale}).expect(0)


def test_mig_05_refusals(shop: SampleRepository) -> None:
    """A doubtful order is refused before anything is asked of a server."""
    assert shop.cluster is not None
    for name, said in (
        ("0001_again.sql", "0001_again.sql and 0001_base.sql"),
        ("notes.sql", "notes.sql"),
        ("0006_x.sql/y", "0006_x.sql is a folder"),
    ):
        path = shop.migration(name, "SELECT 1;")
        with untouched(shop.cluster, "shop_test"):
            shop.run("reset").expect(2, said)
        path.unlink()
        if name.endswith("/y"):
            path.parent.rmdir()


def test_mig_05_leftovers_are_skipped_aloud(shop: SampleRepository) -> None:
    """Editors' files are no migrations, and the reset says so."""
    shop.migration("0004_x.sql.orig", "nonsense")
    shop.migration(".0005_x.sql.swp", "nonsense")
    shop.run("reset").expect(0, "0004_x.sql.orig is skipped", ".0005_x.sql.swp is skipped")


@pytest.mark.parametrize("mark", ["", f"{sql.MARK}\n"], ids=["normal", "marked"])
def test_mig_06_a_failure_in_the_middle(shop: SampleRepository, mark: str) -> None:
    """The run ends before any test; the mended file simply runs."""
    shop.migration("0002_a.sql", f"{mark}CREATE TABLE a(i int); SELECT 1/0; CREATE TABLE b(i int);")
    shop.migration("0003_c.sql", "CREATE TABLE c(i int);")
    done = shop.run("test").expect(4, "stream 'core'", f"0002_a.sql:{2 if mark else 1}:24", "22012", "SELECT 1/0")
    assert "tests/orders" not in done.stdout
    shop.migration("0002_a.sql", f"{mark}CREATE TABLE a(i int); CREATE TABLE b(i int);")
    shop.run("test").expect(0)


@pytest.mark.parametrize(
    "text",
    [
        f"{sql.MARK}\nDROP DATABASE shop;",
        f"{sql.MARK}\nCREATE DATABASE stray;",
        "ALTER DATABASE shop SET timezone = 'UTC';",
        "ALTER ROLE dev IN DATABASE \"shop\" SET work_mem = '8MB';",
        "COMMENT ON DATABASE shop IS 'mine';",
        "GRANT CONNECT ON DATABASE shop_test, Shop TO PUBLIC;",
    ],
)
def test_a_file_keeps_to_its_own_database(shop: SampleRepository, text: str) -> None:
    """A file that names the application's database, or makes or drops one, is not run, although the role may do it."""
    assert shop.cluster is not None
    shop.migration("0002_x.sql", text)
    with untouched(shop.cluster, "shop_test", "shop_e2e"):
        shop.run("reset").expect(4, "0002_x.sql:", "DATABASE" if sql.MARK in text else "the application's database 'shop'")
    assert not {"stray"} & set(shop.cluster.databases())


def test_the_shells_own_application_is_kept_too(shop: SampleRepository) -> None:
    """The shell's MC_DB_DSN, where it differs from the file's, names a database that no file may act on."""
    assert shop.cluster is not None
    shop.cluster.create_database("warehouse", "dev")
    shop.migration("0002_x.sql", "ALTER DATABASE warehouse SET timezone = 'UTC';")
    done = shop.run("reset", env={"MC_DB_DSN": shop.cluster.dsn("dev", "warehouse")})
    done.expect(4, "0002_x.sql:1", "the application's database 'warehouse'")
    shop.migration("0002_x.sql", "COMMENT ON TABLE item IS 'as in database shop'; ALTER DATABASE shop_test SET timezone = 'UTC';")
    shop.run("reset", "--database", "test").expect(0)
