"""DB-04 and DB-05: awkward names mean exactly themselves, and a name that the server would cut is refused."""

from __future__ import annotations

import pytest

from harness.targets import derived_name, is_derived, name_beside
from tests.builders import SampleRepository, Sentinel, assert_fresh, untouched
from tests.guard.conftest import verdict

AWKWARD = [
    "shop-test",
    "Shop_Test",
    "test db",
    "100%_test",
    "it's_test",
    'a"b_test',
    "тест_shop",
    "test/db",
    "a=b",
    "$$;--",
    "{}%s",
    "test\\x",
]
NAMES_ITSELF = """\
def test_name(test_connection):
    assert test_connection.execute("SELECT current_database()").fetchone() == ({name!r},)
"""
LONGEST = "n" * 63
TWO_BYTES = "ж" * 32


@pytest.mark.parametrize("name", AWKWARD)
def test_an_awkward_name(sample_repository: SampleRepository, name: str) -> None:
    """Reset and test, twice: one database of exactly that name, and no twin in lower case."""
    repository, cluster = sample_repository, sample_repository.cluster
    assert cluster is not None
    twin = name.lower()
    twins = [twin] if twin != name else []
    for other in twins:
        cluster.create_database(other, "dev")
    repository.env_file({"TEST_DATABASE_URL": cluster.dsn("dev", name)})
    repository.package("tests/orders", NAMES_ITSELF.format(name=name), name="test_orders.py")
    with Sentinel(cluster), untouched(cluster, "shop", *twins):
        repository.run("reset").expect(0)
        assert_fresh(cluster, name)
        before = cluster.oid(name)
        repository.run("test").expect(0)
        assert_fresh(cluster, name, before=before)
        found = [database for database in cluster.databases() if not database.startswith("harness_tpl_")]
        assert sorted(found) == sorted({"shop", "shop_e2e", name, *twins})


@pytest.mark.parametrize("variable", ["TEST_DATABASE_URL", "E2E_DATABASE_URL", "MC_DB_DSN", "MAINTENANCE_DATABASE_URL"])
@pytest.mark.parametrize(
    ("name", "size"), [(LONGEST + "_two", 67), (TWO_BYTES, 64), ("n" * 200, 200)], ids=["67", "two-byte letters", "200"]
)
def test_a_name_that_would_be_cut(witnessed: SampleRepository, variable: str, name: str, size: int) -> None:
    """Over 63 bytes in any of the four variables: exit 2 before any connection, with the length and the limit."""
    assert witnessed.cluster is not None
    cluster = witnessed.cluster
    cut = name.encode()[:63].decode(errors="ignore")
    if cluster.oid(cut) is None:
        cluster.create_database(cut, "dev")
        cluster.execute("CREATE TABLE precious AS SELECT 7 AS i", database=cut, role="dev")
    witnessed.env_file({variable: cluster.dsn("dev", name)})
    begin = len(cluster.log())
    verdict(witnessed).expect(2, variable, f"{size} bytes", "63")
    assert "connection" not in cluster.log()[begin:]
    assert cluster.value("SELECT i FROM precious", database=cut) == 7


def test_a_name_that_would_be_cut_from_the_command_line(witnessed: SampleRepository) -> None:
    """The same with `inv`, and with --adopt."""
    assert witnessed.cluster is not None
    witnessed.env_file({"TEST_DATABASE_URL": witnessed.cluster.dsn("dev", LONGEST + "_two")})
    for arguments in (("reset",), ("reset", "--adopt", LONGEST), ("test",)):
        witnessed.run(*arguments).expect(2, "TEST_DATABASE_URL", "67 bytes", "63")


@pytest.mark.parametrize("name", [LONGEST, "ж" * 31], ids=["63", "62 in two-byte letters"])
def test_the_longest_name(sample_repository: SampleRepository, name: str) -> None:
    """63 bytes are enough, for what the harness derives too."""
    repository, cluster = sample_repository, sample_repository.cluster
    assert cluster is not None
    repository.env_file({"TEST_DATABASE_URL": cluster.dsn("dev", name)})
    with Sentinel(cluster):
        for _ in range(2):
            repository.run("reset").expect(0)
            assert_fresh(cluster, name)
    derived = [name_beside(kind, name) for kind in ("new", "old")] + [derived_name("tpl", "f" * 64)]
    assert all(len(one.encode()) <= 63 and is_derived(one) for one in derived)


def test_a_role_with_an_awkward_name_and_password(sample_repository: SampleRepository) -> None:
    """Names of roles are quoted as those of databases are."""
    repository, cluster = sample_repository, sample_repository.cluster
    assert cluster is not None
    role = 'dev"; DROP DATABASE shop; --'
    cluster.create_role(role, "LOGIN CREATEDB", password="p@:/?#%&=+ '\"\\$é")
    cluster.create_database("Their Shop", role)
    names = {"MC_DB_DSN": "Their Shop", "TEST_DATABASE_URL": "shop_test", "E2E_DATABASE_URL": "shop_e2e"}
    repository.env_file({**{key: cluster.dsn(role, name) for key, name in names.items()}, "MAINTENANCE_DATABASE_URL": cluster.dsn(role)})
    with Sentinel(cluster, database="Their Shop", owner=role):
        repository.run("reset").expect(0)
        repository.run("test", "--e2e").expect(0)
        assert_fresh(cluster, "shop_test", owner=role)
