"""--adopt lists what is in a database before it is reset; what belongs to others outlives every reset."""

from __future__ import annotations

import shlex

from harness.targets import Stamp, name_beside
from tests.builders import SampleRepository, Sentinel, assert_fresh, literal, untouched


def test_adopting_lists_what_is_in_it(sample_repository: SampleRepository) -> None:
    """--adopt NAME names every table with its rows before it resets; from then on the database is ours."""
    repository, cluster = sample_repository, sample_repository.cluster
    assert cluster is not None
    before = cluster.create_database("shop_test", "dev")
    cluster.execute("CREATE TABLE precious AS SELECT generate_series(1, 17) AS i", database="shop_test", role="dev")
    cluster.execute('CREATE SCHEMA "Old Stuff" CREATE TABLE "Or""ders"(i int)', database="shop_test", role="dev")
    cluster.execute("CREATE TABLE hidden AS SELECT 1 AS i", database="shop_test")  # the superuser's: dev may not count
    with Sentinel(cluster):
        with untouched(cluster, "shop", "shop_test"):
            repository.run("reset").expect(3, "inv reset --adopt shop_test")
        done = repository.run("reset", "--adopt", "shop_test").expect(0)
        listed = ["adopting database 'shop_test' with 3 table(s)", "public.precious: 17 row(s)", '"Old Stuff"."Or""ders": 0 row(s)']
        order = [done.stdout.index(phrase) for phrase in (*listed, "'shop_test' is pristine")]
        assert order[0] < min(order[1:3]) <= max(order[1:3]) < order[3]
        assert "public.hidden: unknown number of row(s)" in done.stdout
        assert_fresh(cluster, "shop_test", before=before)
        assert cluster.oid("shop_e2e") is None, "--adopt resets the database that it names, and no other"
        repository.run("reset").expect(0, "'shop_test' is pristine", "'shop_e2e' is pristine")


def test_adopting_an_awkward_name(sample_repository: SampleRepository) -> None:
    """The refusal's own command line adopts, whatever is in the name."""
    repository, cluster = sample_repository, sample_repository.cluster
    assert cluster is not None
    before = cluster.create_database("it's a test", "dev")
    repository.env_file({"TEST_DATABASE_URL": cluster.dsn("dev", "it's a test")})
    refusal = repository.run("reset").expect(3, "--adopt").output
    command = refusal.partition("`")[2].partition("`")[0]
    assert shlex.split(command) == ["inv", "reset", "--adopt", "it's a test"]
    repository.run(*shlex.split(command)[1:]).expect(0)
    assert_fresh(cluster, "it's a test", before=before)


def test_adopting_what_fails_to_migrate_keeps_the_old_database(sample_repository: SampleRepository) -> None:
    """An adoption whose reset fails leaves the tables that it listed, open as before, and another adoption goes through."""
    repository, cluster = sample_repository, sample_repository.cluster
    assert cluster is not None
    before = cluster.create_database("shop_test", "dev")
    cluster.execute("CREATE TABLE precious AS SELECT 1 AS i", database="shop_test", role="dev")
    repository.migration("0002_broken.sql", "SELECT 1/0;\n")
    repository.run("reset", "--adopt", "shop_test").expect(4, "22012")
    assert cluster.oid("shop_test") == before
    assert cluster.value("SELECT count(*) FROM precious", database="shop_test", role="dev") == 1
    repository.migration("0002_broken.sql", "SELECT 1;\n")
    repository.run("reset", "--adopt", "shop_test").expect(0)
    assert_fresh(cluster, "shop_test", before=before)


def test_foreign_databases_with_our_kind_of_name_are_kept(sample_repository: SampleRepository) -> None:
    """Templates and scratch databases of other worktrees, or of nobody, outlive our resets."""
    repository, cluster = sample_repository, sample_repository.cluster
    assert cluster is not None
    theirs = Stamp("test", "/r", "/elsewhere", "0" * 64, 1.0).text()
    kept = {}
    for name, text in (
        ("harness_tpl_00000000000000aa", theirs),
        ("harness_new_00000000000000bb", ""),
        ("harness_old_00000000000000cc", "x"),
    ):
        kept[name] = cluster.create_database(name, "dev")
        cluster.execute(f"COMMENT ON DATABASE {name} IS {literal(text)}")
    for turn in range(5):
        repository.migration("0002_more.sql", f"CREATE TABLE more_{turn}(i int);\n")
        repository.run("reset").expect(0)
    assert {name: cluster.oid(name) for name in kept} == kept


def test_a_strangers_database_in_the_way_of_a_scratch_name(sample_repository: SampleRepository) -> None:
    """A database under the very name that the next reset would build under: kept, and named."""
    repository, cluster = sample_repository, sample_repository.cluster
    assert cluster is not None
    name = name_beside("new", "shop_test")
    oid = cluster.create_database(name, "dev")
    cluster.execute(f"COMMENT ON DATABASE {name} IS {literal(Stamp('test', '/r', '/elsewhere', 'f', 1.0).text())}")
    repository.run("reset").expect(3, name)
    assert cluster.oid(name) == oid
    cluster.execute(f"DROP DATABASE {name}")
    repository.run("reset").expect(0)
