"""DSN-02: the application's database under another spelling, one database for two classes, databases of the server's own."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

import pytest

from tests.builders import SampleRepository, ScratchCluster, untouched
from tests.guard.conftest import has_ipv6, verdict

SPELLINGS = {
    "the same text": "postgresql://dev:{pw}@127.0.0.1:{port}/{name}",
    "the short scheme": "postgres://dev:{pw}@127.0.0.1:{port}/{name}",
    "localhost": "postgresql://dev:{pw}@localhost:{port}/{name}",
    "upper case": "postgresql://dev:{pw}@LOCALHOST:{port}/{name}?application_name=x",
    "a short address": "postgresql://dev:{pw}@127.1:{port}/{name}",
    "a number": "postgresql://dev:{pw}@2130706433:{port}/{name}",
    "octal": "postgresql://dev:{pw}@0177.0.0.1:{port}/{name}",
    "another address": "postgresql://dev:{pw}@127.0.0.2:{port}/{name}",
    "every address": "postgresql://dev:{pw}@0.0.0.0:{port}/{name}",
    "IPv6": "postgresql://dev:{pw}@[::1]:{port}/{name}",
    "IPv6 in full": "postgresql://dev:{pw}@[0:0:0:0:0:0:0:1]:{port}/{name}",
    "IPv4 in IPv6": "postgresql://dev:{pw}@[::ffff:127.0.0.1]:{port}/{name}",
    "a socket": "postgresql:///{name}?host={sock}&port={port}&user=dev&password={pw}",
    "an encoded socket": "postgresql://dev:{pw}@{qsock}:{port}/{name}",
    "keywords": "host='{sock}' port={port} user=su password=su-secret-9041 dbname={name}",
    "keywords without a socket": "host=127.0.0.1 port = {port} user=dev password={pw} dbname = '{name}'",
    "hostaddr": "postgresql://dev:{pw}@/{name}?hostaddr=127.0.0.1&port={port}",
    "an encoded name": "postgresql://dev:{pw}@127.0.0.1:{port}/%73hop{rest}",
    "an encoded name in lower case": "postgresql://dev:{pw}@127.0.0.1:{port}/s%68%6f%70{rest}",
    "an encoded host": "postgresql://dev:{pw}@%6cocalhost:{port}/{name}",
    "the name as a parameter": "postgresql://dev:{pw}@127.0.0.1:{port}/?dbname={name}",
    "the name as a parameter without a slash": "postgresql://dev:{pw}@127.0.0.1:{port}?dbname={name}",
    "the host as a parameter": "postgresql://dev:{pw}@/{name}?host=localhost&port={port}",
    "another role": "postgresql://su:su-secret-9041@127.0.0.1:{port}/{name}",
    "more parameters": "postgresql://dev:{pw}@127.0.0.1:{port}/{name}?sslmode=disable&connect_timeout=3&options=-csearch_path%3Dx",
    "jdbc's ssl": "postgresql://dev:{pw}@127.0.0.1:{port}/{name}?sslmode=prefer&client_encoding=latin1",
}


SOME = {name: SPELLINGS[name] for name in ("localhost", "a short address", "a socket", "keywords", "the name as a parameter")}


def spelled(repository: SampleRepository, spelling: str, name: str) -> str:
    """Return the spelling filled in for the database `name`, whose rest behind the first four letters "rest" is."""
    assert repository.cluster is not None
    if "::" in spelling and not has_ipv6():
        pytest.skip("this machine has no ::1")
    sock, password = str(repository.cluster.sockets), quote(repository.cluster.passwords["dev"], safe="")
    return spelling.format(
        name=name, rest=name.removeprefix("shop"), port=repository.cluster.port, sock=sock, qsock=quote(sock, safe=""), pw=password
    )


def refused(repository: SampleRepository, changes: Mapping[str, str], *phrases: str, code: int = 3, adopt: str = "") -> None:
    """Assert that a reset would be refused with these words, with nothing touched."""
    assert repository.cluster is not None
    repository.env_file(changes)
    with untouched(repository.cluster, "shop", "shop_test", "shop_e2e"):
        verdict(repository, adopt=adopt).expect(code, *phrases)


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_the_application_under_another_spelling(witnessed: SampleRepository, spelling: str) -> None:
    """TEST_DATABASE_URL opens the application's database: refused, both variables and the database named."""
    test = spelled(witnessed, spelling, "shop")
    refused(witnessed, {"TEST_DATABASE_URL": test}, "TEST_DATABASE_URL", "MC_DB_DSN", "the same database 'shop'")


@pytest.mark.parametrize("spelling", [SPELLINGS["localhost"], SPELLINGS["keywords"]], ids=["URL", "keywords"])
def test_no_command_goes_there(witnessed: SampleRepository, spelling: str) -> None:
    """The same from the command line, for reset, test and psql, with every flag that might be thought to help."""
    assert witnessed.cluster is not None
    witnessed.env_file({"E2E_DATABASE_URL": spelled(witnessed, spelling, "shop")})
    with untouched(witnessed.cluster, "shop", "shop_test", "shop_e2e"):
        for arguments in (("reset",), ("reset", "--fresh", "--database", "e2e"), ("test", "--e2e")):
            done = witnessed.run(*arguments).expect(3, "E2E_DATABASE_URL", "MC_DB_DSN", "the same database 'shop'")
            assert "is pristine" not in done.output
        witnessed.run("psql", "--database", "e2e", "--", "-c", "DROP TABLE keep").expect(3, "the same database 'shop'")


@pytest.mark.parametrize("spelling", SOME.values(), ids=SOME)
def test_the_application_itself_under_another_spelling(witnessed: SampleRepository, spelling: str) -> None:
    """MC_DB_DSN is the one that is spelled strangely, and E2E_DATABASE_URL opens its database."""
    application = spelled(witnessed, spelling, "shop")
    changes = {"MC_DB_DSN": application, "E2E_DATABASE_URL": witnessed.dsn("MC_DB_DSN")}
    refused(witnessed, changes, "E2E_DATABASE_URL", "MC_DB_DSN", "the same database 'shop'")


@pytest.mark.parametrize("spelling", SOME.values(), ids=SOME)
def test_a_test_database_under_another_spelling_is_taken(witnessed: SampleRepository, spelling: str) -> None:
    """What opens the very test database that was proven is reset, however it is spelled."""
    test = spelled(witnessed, spelling, "shop_test")
    witnessed.env_file({"TEST_DATABASE_URL": test})
    if "//su:" in spelling or "user=su" in spelling:
        refused(witnessed, {"TEST_DATABASE_URL": test}, "may not make a database for 'su'")
        return
    assert witnessed.cluster is not None
    before = witnessed.cluster.oid("shop_test")
    with untouched(witnessed.cluster, "shop", "shop_e2e"):
        witnessed.run("reset", "--database", "test").expect(0, "'shop_test' is pristine")
    assert witnessed.cluster.oid("shop_test") != before


@pytest.mark.parametrize("spelling", SOME.values(), ids=SOME)
def test_one_database_for_both_classes(witnessed: SampleRepository, spelling: str) -> None:
    """TEST_DATABASE_URL and E2E_DATABASE_URL name one database in two spellings."""
    if "user=su" in spelling or "//su:" in spelling:
        spelling = spelling.replace("su-secret-9041", "{pw}").replace("user=su", "user=dev").replace("//su:", "//dev:")
    refused(
        witnessed,
        {"E2E_DATABASE_URL": spelled(witnessed, spelling, "shop_test")},
        "TEST_DATABASE_URL",
        "E2E_DATABASE_URL",
        "the same database 'shop_test'",
    )


@pytest.mark.parametrize("name", ["postgres", "template0", "template1"])
@pytest.mark.parametrize("spelling", ["the same text", "localhost", "a socket"])
def test_the_servers_own_databases(witnessed: SampleRepository, name: str, spelling: str) -> None:
    """TEST_DATABASE_URL names the maintenance database or a template."""
    spelling = SPELLINGS[spelling]
    refused(witnessed, {"TEST_DATABASE_URL": spelled(witnessed, spelling, name)}, "TEST_DATABASE_URL", repr(name))


def test_an_own_template_database(witnessed: SampleRepository) -> None:
    """A database marked as a template is somebody's stock, whatever its name."""
    assert witnessed.cluster is not None
    witnessed.cluster.create_database("stock_test", "dev", "IS_TEMPLATE true")
    refused(witnessed, {"TEST_DATABASE_URL": witnessed.cluster.dsn("dev", "stock_test")}, "template database 'stock_test'")
    refused(
        witnessed,
        {"TEST_DATABASE_URL": witnessed.cluster.dsn("dev", "stock_test")},
        "template database 'stock_test'",
        adopt="stock_test",
    )


def test_a_name_of_the_harness(witnessed: SampleRepository) -> None:
    """The names of templates and databases under construction are nobody's target."""
    assert witnessed.cluster is not None
    name = "harness_tpl_0123456789abcdef"
    refused(witnessed, {"TEST_DATABASE_URL": witnessed.cluster.dsn("dev", name)}, "TEST_DATABASE_URL", name)


@pytest.mark.parametrize("name", ["latest", "contest", "shop_test_", "test"])
def test_no_name_makes_an_application_fair_game(witnessed: SampleRepository, name: str) -> None:
    """An application's database is protected though its name has `test` in it."""
    assert witnessed.cluster is not None
    oid = witnessed.cluster.create_database(name, "dev")
    changes = {"MC_DB_DSN": witnessed.cluster.dsn("dev", name), "TEST_DATABASE_URL": spelled(witnessed, SPELLINGS["localhost"], name)}
    refused(witnessed, changes, "TEST_DATABASE_URL", "MC_DB_DSN", f"the same database {name!r}")
    refused(witnessed, changes, f"the same database {name!r}", adopt=name)
    assert witnessed.cluster.oid(name) == oid


def test_adoption_does_not_open_the_application(witnessed: SampleRepository) -> None:
    """--adopt lifts the missing stamp and nothing else."""
    assert witnessed.cluster is not None
    shop = {"TEST_DATABASE_URL": spelled(witnessed, SPELLINGS["a short address"], "shop")}
    refused(witnessed, shop, "the same database 'shop'", adopt="shop")
    refused(witnessed, {}, "'shop' is no test or e2e database", code=2, adopt="shop")


def test_a_stamp_does_not_open_the_application(witnessed: SampleRepository) -> None:
    """Each lock is enough alone: the application's database is refused though it carries this worktree's own stamp."""
    assert witnessed.cluster is not None
    stamp = witnessed.cluster.value("SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = 'shop_test'")
    witnessed.cluster.execute(f"COMMENT ON DATABASE shop IS $stamp${stamp}$stamp$")
    try:
        refused(witnessed, {"TEST_DATABASE_URL": spelled(witnessed, SPELLINGS["localhost"], "shop")}, "the same database 'shop'")
    finally:
        witnessed.cluster.execute("COMMENT ON DATABASE shop IS NULL")


@pytest.mark.parametrize("spelling", ["the same text", "localhost", "a socket"])
def test_the_maintenance_database_is_not_the_application(witnessed: SampleRepository, spelling: str) -> None:
    """Our own sessions and locks do not live in the application's database either."""
    same = spelling == "the same text"
    refused(
        witnessed,
        {"MAINTENANCE_DATABASE_URL": spelled(witnessed, SPELLINGS[spelling], "shop")},
        "MAINTENANCE_DATABASE_URL",
        "MC_DB_DSN",
        "the same database 'shop'",
        code=2 if same else 3,
    )


def test_an_application_that_cannot_be_reached_is_known_by_its_name(witnessed: SampleRepository) -> None:
    """With MC_DB_DSN on a dead server: go on if the names differ, and say so; refuse where they do not."""
    dead = "postgresql://dev:pw-secret-0815@127.0.0.1:1/{}"
    witnessed.env_file({"MC_DB_DSN": dead.format("shop")})
    done = verdict(witnessed).expect(0, "MC_DB_DSN (127.0.0.1:1/shop)", "cannot be asked which one it is, so any database named 'shop'")
    assert "pw-secret-0815" not in done.output
    refused(witnessed, {"MC_DB_DSN": dead.format("shop_test")}, "TEST_DATABASE_URL", "MC_DB_DSN", "the same database 'shop_test'")


def test_an_application_that_lets_nobody_in_is_known_by_its_name(witnessed: SampleRepository) -> None:
    """The same where its server says no."""
    assert witnessed.cluster is not None
    no = f"postgresql://dev:wrong-password-0815@localhost:{witnessed.cluster.port}/shop"
    refused(
        witnessed, {"MC_DB_DSN": no, "TEST_DATABASE_URL": witnessed.cluster.dsn("dev", "shop")}, "MC_DB_DSN", "the same database 'shop'"
    )
    witnessed.env_file({"MC_DB_DSN": no})
    done = verdict(witnessed).expect(0, "cannot be asked")
    assert "wrong-password-0815" not in done.output


def test_the_shells_application_is_protected_too(witnessed: SampleRepository) -> None:
    """The shell's own MC_DB_DSN differs from the file's: both are the application's."""
    assert witnessed.cluster is not None
    witnessed.cluster.create_database("other_shop", "dev")
    shell = {"MC_DB_DSN": f"postgresql+asyncpg://dev@localhost:{witnessed.cluster.port}/other_shop"}
    witnessed.env_file({"TEST_DATABASE_URL": witnessed.cluster.dsn("dev", "other_shop")})
    for adopt in ("", "other_shop"):
        with untouched(witnessed.cluster, "shop", "other_shop", "shop_e2e"):
            verdict(witnessed, adopt=adopt, shell=shell).expect(3, "TEST_DATABASE_URL", "MC_DB_DSN", "the same database 'other_shop'")


def test_a_file_without_the_applications_dsn_is_refused(witnessed: SampleRepository) -> None:
    """Leaving MC_DB_DSN out of test/.env does not switch the identity lock off."""
    assert witnessed.cluster is not None
    witnessed.env_file({"MC_DB_DSN": None})
    with untouched(witnessed.cluster, "shop", "shop_test", "shop_e2e"):
        verdict(witnessed).expect(2, "MC_DB_DSN", "test/.env", "bootstrap-stack.sh")


def test_another_server_than_the_maintenance_dsns(witnessed: SampleRepository) -> None:
    """TEST_DATABASE_URL on another server than MAINTENANCE_DATABASE_URL: refused before anything happens on either."""
    with ScratchCluster() as other:
        other.create_role("dev", "LOGIN CREATEDB")
        oid = other.create_database("shop_test", "dev")
        refused(
            witnessed,
            {"TEST_DATABASE_URL": other.dsn("dev", "shop_test")},
            "TEST_DATABASE_URL",
            "MAINTENANCE_DATABASE_URL",
            "different servers",
        )
        assert other.oid("shop_test") == oid
        dead = other.dsn("dev", "shop_test")
    refused(witnessed, {"TEST_DATABASE_URL": dead}, "no server answers for TEST_DATABASE_URL", code=5)
