"""Connection strings, stamps and names: what is refused, what is understood, and that no password shows."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict

from harness import errors
from harness.errors import UsageError
from harness.targets import (
    HIDDEN,
    Dsn,
    Identity,
    SafeTarget,
    Stamp,
    check_name,
    check_parameters,
    derived_name,
    is_derived,
    parse_dsn,
    read_stamp,
)

LONG = "n" * 63
REFUSED = {
    # what is missing
    "nothing": ("", "names no host"),
    "no host": ("postgresql:///shop", "names no host"),
    "no host, with a user": ("postgresql://dev@/shop", "names no host"),
    "no database": ("postgresql://shop@127.0.0.1:1", "names no database"),
    "no database, with a slash": ("postgresql://shop@127.0.0.1:1/", "names no database"),
    "an empty dbname": ("postgresql://dev@h/?dbname=", "names no database"),
    "keywords without a host": ("dbname=shop_test user=dev", "names no host"),
    "keywords without a database": ("host=h user=dev", "names no database"),
    # what is said twice or elsewhere
    "dbname behind a path": ("postgresql://dev@h/shop_test?dbname=shop", "its dbname twice"),
    "dbname behind a database": ("postgresql:///shop_test?dbname=shop&host=h", "its dbname twice"),
    "host behind a host": ("postgresql://dev@h/t?host=other", "its host twice"),
    "port behind a port": ("postgresql://dev@h:1/t?port=2", "its port twice"),
    "user behind a user": ("postgresql://dev@h/t?user=su", "its user twice"),
    "password behind a password": ("postgresql://dev:hush-hush-hush@h/t?password=other-other-other", "its password twice"),
    "a doubled key": ("postgresql://dev@h/t?sslmode=disable&sslmode=require", "its sslmode twice"),
    "a doubled keyword": ("host=h dbname=shop_test dbname=shop", "its dbname twice"),
    "a doubled keyword in quotes": ("host=h dbname = 'shop_test' dbname='shop'", "its dbname twice"),
    "hostaddr beside host": ("postgresql://dev@h/t?hostaddr=127.0.0.1", "names host and hostaddr"),
    "a service": ("postgresql://dev@h/t?service=prod", "names a service"),
    "a service keyword": ("service=prod", "names a service"),
    "several hosts": ("postgresql://dev@h1,h2/t", "names several hosts"),
    "several hosts with ports": ("postgresql://dev@h1:1,h2:2/t", "names several hosts"),
    "several sockets": ("host=/a,/b dbname=t", "names several hosts"),
    # forms of other tools
    "a driver in the scheme": ("postgresql+psycopg://dev@h/t", "begins with 'postgresql+psycopg://'"),
    "another database system": ("mysql://dev@h/t", "begins with 'mysql://'"),
    "jdbc": ("jdbc:postgresql://h/t", "not a connection string"),
    "a schema parameter": ("postgresql://dev@h/t?schema=public", "the parameter 'schema'"),
    "a pool parameter": ("postgresql://dev@h/t?sslmode=disable&pool_timeout=3", "the parameter 'pool_timeout'"),
    "a URL for a name": ("host=h dbname=postgresql://x/y", "a connection string for a database name"),
    "keywords for a name": ("host=h dbname='host=x dbname=y'", "a connection string for a database name"),
    # special characters that parsers read differently
    "@ in the password": ("postgresql://dev:hush@hush-hush@h:1/t", "unencoded '@'"),
    "/ in the password": ("postgresql://dev:hush/hush-hush@h:1/t", "unencoded '@', '/' or '?'"),
    "? in the password": ("postgresql://dev:hush?hush-hush@h:1/t", "unencoded '@', '/' or '?'"),
    "# in the password": ("postgresql://dev:hush#hush-hush@h:1/t", "unencoded '#'"),
    "% in the password": ("postgresql://dev:50%hush-hush@h:1/t", "'%' that begins no percent-encoding"),
    "% at the end": ("postgresql://dev:hush-hush%@h:1/t", "'%' that begins no percent-encoding"),
    "a space": ("postgresql://dev:hush hush-hush@h/t", "unencoded ' '"),
    "a backslash": ("postgresql://dev:hush\\hush-hush@h/t", r"unencoded '\\'"),
    "a line break": ("postgresql://dev@h/t\n", r"unencoded '\n'"),
    "a leading space": (" postgresql://dev@h/t", "not a connection string"),
    "a NUL": ("host=h dbname=shop_test\0_x", "has a NUL"),
    "an encoded NUL": ("postgresql://dev@h/t%00x", "not a connection string"),
    "Latin-1": ("postgresql://dev@h/caf%E9", "is not UTF-8"),
    "bytes of another encoding": ("postgresql://dev@h/caf\udce9", "has an unencoded"),
    "keywords of another encoding": ("host=h dbname=caf\udce9", "is not UTF-8"),
    "@ in a keyword's host": ("host=ss@h dbname=t", "unencoded '@'"),
    # ports and names
    "no number for a port": ("postgresql://dev@h:abc/t", "no usable port"),
    "port 0": ("postgresql://dev@h:0/t", "no usable port"),
    "port 65536": ("postgresql://dev@h:65536/t", "no usable port"),
    "a negative port": ("host=h port=-1 dbname=t", "no usable port"),
    "64 bytes": (f"postgresql://dev@h/{LONG}x", "a database of 64 bytes"),
    "64 bytes in 32 letters": (f"postgresql://dev@h/{quote('ж' * 32)}", "a database of 64 bytes"),
}


@pytest.mark.parametrize(("text", "finding"), REFUSED.values(), ids=REFUSED)
def test_what_could_mean_another_database_is_refused(text: str, finding: str) -> None:
    """The message begins with the variable, says what was found and what to write, and has no part of a password."""
    with pytest.raises(UsageError) as caught:
        parse_dsn("TEST_DATABASE_URL", text)
    assert caught.value.message.startswith("TEST_DATABASE_URL ")
    assert finding in caught.value.message
    assert caught.value.next.endswith(".")
    assert "hush" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None, "libpq's own text may quote the password"


@pytest.mark.parametrize(("raw", "encoded"), [("@", "%40"), ("/", "%2F"), ("%", "%25"), ("?", "%3F"), ("#", "%23")])
def test_the_advice_has_the_encoding(raw: str, encoded: str) -> None:
    """Whoever wrote the raw character reads what to write instead."""
    with pytest.raises(UsageError) as caught:
        parse_dsn("TEST_DATABASE_URL", f"postgresql://dev:a{raw}b@h/t")
    assert f"{raw} is {encoded}" in caught.value.next


UNDERSTOOD = {
    "plain": ("postgresql://dev:pw@h:1/t", ("h", "", 1, "dev", "pw", "t")),
    "postgres://": ("postgres://dev@h/t", ("h", "", 5432, "dev", "", "t")),
    "IPv6": ("postgresql://dev@[::1]:1/t", ("::1", "", 1, "dev", "", "t")),
    "a zone": ("postgresql://dev@[fe80::1%25eth0]:1/t", ("fe80::1%eth0", "", 1, "dev", "", "t")),
    "a socket": ("postgresql:///t?host=/run/s&port=1&user=dev", ("/run/s", "", 1, "dev", "", "t")),
    "an encoded socket": ("postgresql://dev@%2Frun%2Fs/t", ("/run/s", "", 5432, "dev", "", "t")),
    "an abstract socket": ("host=@s user=dev dbname=t", ("@s", "", 5432, "dev", "", "t")),
    "keywords": ("host=h port=1 user=dev password='p w' dbname=t", ("h", "", 1, "dev", "p w", "t")),
    "hostaddr alone": ("postgresql://dev@/t?hostaddr=127.0.0.1", ("", "127.0.0.1", 5432, "dev", "", "t")),
    "an encoded name": ("postgresql://dev@h/%73hop", ("h", "", 5432, "dev", "", "shop")),
    "upper case": ("postgresql://dev@LOCALHOST:1/Shop_Test", ("LOCALHOST", "", 1, "dev", "", "Shop_Test")),
    "an encoded password": (f"postgresql://dev:{quote('p@:/?#%&=+', safe='')}@h/t", ("h", "", 5432, "dev", "p@:/?#%&=+", "t")),
    "63 bytes": (f"postgresql://dev@h/{LONG}", ("h", "", 5432, "dev", "", LONG)),
    "a name with = and a space": (f"postgresql://dev@h/{quote('a=b')}", ("h", "", 5432, "dev", "", "a=b")),
}


@pytest.mark.parametrize(("text", "expected"), UNDERSTOOD.values(), ids=UNDERSTOOD)
def test_what_is_understood(text: str, expected: tuple[str | int, ...]) -> None:
    """Every part is what libpq reads, and the text stays byte for byte."""
    dsn = parse_dsn("TEST_DATABASE_URL", text)
    assert (dsn.host, dsn.hostaddr, dsn.port, dsn.user, dsn.password, dsn.name) == expected
    assert dsn.text == text


def test_parameters_are_kept() -> None:
    """What the user added for libpq goes along."""
    dsn = parse_dsn("TEST_DATABASE_URL", "postgresql://dev@h/t?sslmode=disable&application_name=a%20b")
    assert dict(dsn.extra) == {"sslmode": "disable", "application_name": "a b"}
    assert dsn.parameters()["application_name"] == "a b"
    assert dsn.url() == "postgresql://dev@h:5432/t?application_name=a%20b&sslmode=disable"
    assert dsn.url("postgresql+psycopg").startswith("postgresql+psycopg://dev@h")


def test_another_database_on_the_same_server() -> None:
    """`at` changes the name and with it the text that children would get."""
    dsn = parse_dsn("TEST_DATABASE_URL", "postgresql://dev:pw@h:1/t").at("postgres")
    assert (dsn.name, dsn.text, dsn.where) == ("postgres", "postgresql://dev:pw@h:1/postgres", "h:1/postgres")
    assert dsn.endpoint == ("h", "", 1)


def test_the_user_is_never_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host, port, database and password come from the DSN alone, whatever PG* the shell exports."""
    for name in ("PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGPASSWORD", "PGSERVICE"):
        monkeypatch.setenv(name, "1234")
    dsn = parse_dsn("TEST_DATABASE_URL", "postgresql://dev@h/t")
    assert dsn.parameters() == {"host": "h", "port": "5432", "user": "dev", "dbname": "t"}
    with pytest.raises(UsageError, match="names no database"):
        parse_dsn("TEST_DATABASE_URL", "postgresql://dev@h")


@pytest.mark.parametrize(
    ("parameters", "finding"),
    [
        ("sslmode=maybe", 'invalid sslmode value: "maybe"'),
        ("target_session_attrs=any&channel_binding=perhaps", 'invalid channel_binding value: "perhaps"'),
        ("sslmode=disable&connect_timeout=soon", "connect_timeout 'soon' is no number of seconds"),
        ("connect_timeout=1.5", "connect_timeout '1.5' is no number of seconds"),
    ],
)
def test_a_parameter_that_no_connection_can_be_opened_with_is_told_before_one_is_tried(parameters: str, finding: str) -> None:
    """It is named with its value, under the name that test/.env has."""
    with pytest.raises(UsageError) as caught:
        check_parameters(parse_dsn("TEST_DATABASE_URL", f"postgresql://dev@h:1/t?{parameters}"))
    assert caught.value.message == f"TEST_DATABASE_URL (h:1/t): {finding}"


def test_a_parameter_that_only_a_server_can_judge_is_left_to_it() -> None:
    """As are those with a value that is right."""
    right = "sslmode=require&connect_timeout=%203%20&target_session_attrs=standby&options=-cnonsense%3D1&keepalives=1&application_name=a"
    check_parameters(parse_dsn("TEST_DATABASE_URL", f"postgresql://dev@h:1/t?{right}"))


def test_a_dsn_without_user_is_the_operating_systems() -> None:
    """As libpq does it."""
    assert parse_dsn("TEST_DATABASE_URL", "postgresql://h/t").user != ""


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
hosts = st.sampled_from(["localhost", "127.0.0.1", "::1", "fe80::1%eth0", "/run/with space/s", "@abstract", "db.example", "LOCALHOST"])
names = texts.filter(lambda name: len(name.encode()) <= 63 and "://" not in name and not ("=" in name and " " in name))
extras = st.dictionaries(st.sampled_from(["application_name", "sslmode", "options", "connect_timeout"]), texts, max_size=3)


@given(host=hosts, port=st.integers(1, 65535), user=texts, password=st.one_of(st.just(""), texts), name=names, extra=extras)
def test_a_url_means_the_same_to_libpq_and_to_us(host: str, port: int, user: str, password: str, name: str, extra: dict[str, str]) -> None:
    """url() of any parts is parsed back into those parts, by libpq's own parser and by ours."""
    dsn = Dsn("TEST_DATABASE_URL", "", host, "", port, user, password, name, tuple(extra.items()))
    url = dsn.url()
    found = {key: str(value) for key, value in conninfo_to_dict(url).items()}
    assert found == {key: value for key, value in {**dsn.parameters()}.items() if value}
    again = parse_dsn("TEST_DATABASE_URL", url)
    assert again._replace(text="", extra=()) == dsn._replace(extra=())
    assert dict(again.extra) == extra


@given(password=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=4, max_size=20), name=st.just("t"))
def test_no_password_is_shown(password: str, name: str) -> None:
    """Neither repr nor str nor f-string nor `where` has it."""
    dsn = parse_dsn("TEST_DATABASE_URL", f"postgresql://u:{quote(password, safe='')}@h:1/{name}")
    for text in (repr(dsn), str(dsn), f"{dsn}", f"{dsn!r}", dsn.where, f"{[dsn]}", f"{(dsn,)}"):
        assert text.strip("[](),") in ("<TEST_DATABASE_URL u@h:1/t>", "h:1/t")


@given(text=st.text(max_size=60))
def test_any_text_is_understood_or_refused(text: str) -> None:
    """Nothing else than a UsageError comes out, and what is accepted is what libpq opens."""
    for candidate in (text, f"postgresql://{text}", f"postgresql://u:{text}@h:1/t", f"host=h dbname={text}"):
        try:
            dsn = parse_dsn("TEST_DATABASE_URL", candidate)
        except UsageError as refused:
            assert refused.next  # noqa: PT017  # both endings are right ones
        else:
            found = conninfo_to_dict(candidate)
            assert (found.get("dbname"), found.get("host") or "") == (dsn.name, dsn.host)
            if candidate.startswith("postgresql://u:"):
                assert (dsn.host, dsn.name, dsn.user) == ("h", "t", "u")


def test_a_parsed_password_is_concealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The boundary hides what was once parsed."""
    monkeypatch.setattr(errors, "_secrets", set())
    parse_dsn("TEST_DATABASE_URL", "postgresql://u:distinctive-secret@h/t?sslpassword=another-secret-too")
    assert errors.redact("distinctive-secret another-secret-too") == "*** ***"


def test_the_hidden_dsn_can_reach_nothing() -> None:
    """The poison is a well-formed DSN of a name that never resolves."""
    assert parse_dsn("MC_DB_DSN", HIDDEN).host.endswith(".invalid")


@pytest.mark.parametrize("name", ["a" * 63, "ж" * 31 + "a", "t"])
def test_a_name_of_63_bytes_is_allowed(name: str) -> None:
    """The limit is PostgreSQL's."""
    check_name(name, "X")


STAMP = Stamp("test", "shop", "/w/shop", "f" * 64, 1.5)


def test_a_stamp_is_read_back() -> None:
    """What is written as comment comes back as it was, with any path in it."""
    for stamp in (STAMP, STAMP._replace(worktree="/w/with space/é'\"\\")):
        assert read_stamp(stamp.text()) == stamp


@pytest.mark.parametrize(
    "comment",
    [
        None,
        "",
        "production",
        "null",
        "[]",
        "{}",
        "[" * 100_000,
        json.dumps({**STAMP._asdict()}),
        json.dumps({**STAMP._asdict(), "pgharness": 2}),
        json.dumps({**STAMP._asdict(), "pgharness": 1, "more": 1}),
        json.dumps({**STAMP._asdict(), "pgharness": 1, "worktree": None}),
        json.dumps({**STAMP._asdict(), "pgharness": 1, "time": "now"}),
        json.dumps({**STAMP._asdict(), "pgharness": 1, "time": True}),
        json.dumps({"pgharness": 1, "role": "test"}),
        STAMP.text() + "x",
    ],
)
def test_anything_else_is_no_stamp(comment: str | None) -> None:
    """A missing, foreign, newer, incomplete or broken comment makes no database ours."""
    assert read_stamp(comment) is None


def test_derived_names_are_told_from_others() -> None:
    """Templates and databases under construction have one form, within PostgreSQL's limit."""
    for kind in ("new", "old", "tpl"):
        name = derived_name(kind, "0123456789abcdef0123")
        assert name == f"harness_{kind}_0123456789abcdef"
        assert is_derived(name)
        assert len(name) <= 63
    for name in (
        "harness_new_",
        "harness_new_0123456789ABCDEF",
        "harness_x_0123456789abcdef",
        "harness_tpl_0123456789abcdef\n",
        "shop_test",
    ):
        assert not is_derived(name)


def test_values_compare_by_content() -> None:
    """Two spellings are one database when system identifier and oid agree."""
    assert Identity("1", 2) == Identity("1", 2)
    assert Identity("1", 2) != Identity("2", 2)
    assert SafeTarget("test", parse_dsn("X", "postgresql://h/t"), None, None).oid is None
