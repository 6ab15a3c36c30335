"""What a package left behind is found exactly, on a real server: every kind, and nothing where nothing is left."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from harness.residue import LeftLock, SequenceMove, TableChange
from harness.targets import parse_dsn
from harness.watch import Watch
from tests.verdict.conftest import Watched

NOTHING = {
    "nothing at all": "SELECT 1",
    "reading": "SELECT * FROM item; SELECT * FROM cheap",
    "a rolled-back insert": 'BEGIN; INSERT INTO "odd ""name" VALUES (1); ROLLBACK',
    "a rolled-back update": "BEGIN; UPDATE item SET n = n + 1; ROLLBACK",
    "a rolled-back delete": "BEGIN; DELETE FROM item; ROLLBACK",
    "a rolled-back truncate": "BEGIN; TRUNCATE item CASCADE; ROLLBACK",
    "a rolled-back savepoint": "BEGIN; SAVEPOINT s; DELETE FROM ticket; ROLLBACK TO s; COMMIT",
    "a rolled-back table": "BEGIN; CREATE TABLE other(id int); ROLLBACK",
    "a failing statement": "DO $$ BEGIN DELETE FROM item; RAISE division_by_zero; EXCEPTION WHEN others THEN NULL; END $$",
    "update and restore": "UPDATE item SET n = 7 WHERE id = 3; UPDATE item SET n = 0 WHERE id = 3",
    "insert and delete": 'INSERT INTO "odd ""name" VALUES (1); DELETE FROM "odd ""name"',
    "delete and insert again": 'WITH gone AS (DELETE FROM ticket RETURNING *) INSERT INTO "odd ""name" SELECT seat FROM gone;'
    ' DELETE FROM "odd ""name"; INSERT INTO ticket VALUES (1, 1)',
    "truncate and insert again": "CREATE TEMP TABLE kept AS SELECT * FROM ticket; TRUNCATE ticket; INSERT INTO ticket SELECT * FROM kept",
    "make and drop a table": "CREATE TABLE other(id serial PRIMARY KEY); INSERT INTO other DEFAULT VALUES; DROP TABLE other",
    "make and drop a function": "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'; DROP FUNCTION f()",
    "replace a function and put it back": "CREATE OR REPLACE FUNCTION twice(x int) RETURNS int LANGUAGE sql AS 'SELECT 3 * x';"
    " CREATE OR REPLACE FUNCTION twice(x int) RETURNS int LANGUAGE sql AS 'SELECT 2 * x'",
    "add and drop a column": "ALTER TABLE item ADD extra int; ALTER TABLE item DROP extra",
    "disable and enable a trigger": "ALTER TABLE item DISABLE TRIGGER USER; ALTER TABLE item ENABLE TRIGGER USER",
    "set and reset a setting": "ALTER DATABASE shop_test SET work_mem = '8MB'; ALTER DATABASE shop_test RESET work_mem",
    "grant and revoke": "GRANT SELECT ON item TO PUBLIC; REVOKE SELECT ON item FROM PUBLIC",
    "a temporary table": "CREATE TEMP TABLE here(id int); INSERT INTO here VALUES (1)",
    "an advisory lock of a closed session": "SELECT pg_advisory_lock(42)",
    "statistics": "ANALYZE",
    "a refreshed view": "REFRESH MATERIALIZED VIEW total",
    "a sequence read": "SELECT last_value FROM free_seq",
    "make and drop a role": "CREATE ROLE passer; DROP ROLE passer",
    "a reindexed table": "REINDEX TABLE item",
    "a clustered table": "CLUSTER item USING item_pkey; ALTER TABLE item SET WITHOUT CLUSTER",
    "statistics forgotten after a restored update": "UPDATE item SET n = 1 WHERE id = 1; UPDATE item SET n = 0 WHERE id = 1",
}


@pytest.mark.parametrize("sql", NOTHING.values(), ids=list(NOTHING))
def test_what_leaves_nothing_is_not_reported(watched: Watched, sql: str) -> None:
    """Rolled back, undone, or never written: there is no residue."""
    watched.run(sql)
    assert watched.summary() == "-"
    assert watched.summary() == "-"


SOMETHING = {
    "a row": ("INSERT INTO ticket VALUES (9, 9)", "public.ticket 1 → 2 rows (1 written)"),
    "an update": ("UPDATE item SET n = 7 WHERE id < 4", "public.item 20 → 20 rows (3 written)"),
    "a delete": ("DELETE FROM ticket", "public.ticket 1 → 0 rows (0 written)"),
    "a truncate": ("TRUNCATE ticket", "public.ticket 1 → 0 rows (0 written)"),
    "an equal number of other rows": (
        "DELETE FROM ticket; INSERT INTO ticket VALUES (1, 2)",
        "public.ticket 1 → 1 rows (1 written)",
    ),
    "a doubled row": ('INSERT INTO "odd ""name" VALUES (1), (1)', 'public."odd ""name" 0 → 2 rows (2 written)'),
    "a partition's row": ("INSERT INTO part VALUES (1, 'north')", "public.part_north 0 → 1 rows (1 written)"),
    "a copied row": ("COPY ticket FROM PROGRAM 'printf ''5\\t5\\n'''", "public.ticket 1 → 2 rows (1 written)"),
    "a refreshed view": (
        "INSERT INTO item(name) VALUES ('new'); REFRESH MATERIALIZED VIEW total",
        "public.item 20 → 21 rows (1 written); public.total 1 → 1 rows (1 written)",
    ),
    "statistics forgotten": ("DELETE FROM ticket; SELECT pg_stat_reset()", "public.ticket 1 → 0 rows (0 written)"),
    "a sequence set": ("SELECT setval('free_seq', 500)", "sequence public.free_seq moved 1 → 500"),
    "a sequence set back": ("ALTER SEQUENCE item_id_seq RESTART WITH 3", "sequence public.item_id_seq moved 20 → 2"),
    "a sequence set but not called": ("SELECT setval('note_id_seq', 9, false)", "sequence public.note_id_seq moved 0 → 8"),
    "a sequence drawn from": ("SELECT nextval('note_id_seq')", "sequence public.note_id_seq moved 0 → 1"),
    "a table": ("CREATE TABLE other(id serial PRIMARY KEY, t text)", "table public.other made"),
    "a table with rows": (
        "CREATE TABLE other AS SELECT 1 AS id",
        "public.other 0 → 1 rows (1 written); table public.other made",
    ),
    "a column": ("ALTER TABLE item ADD extra int", "table public.item changed"),
    "an index": ("CREATE INDEX ON item(name)", "table public.item changed"),
    "a trigger disabled": ("ALTER TABLE note DISABLE TRIGGER ALL", "table public.note changed"),
    "a right": ("GRANT SELECT ON item TO PUBLIC", "table public.item changed"),
    "a table dropped": ("DROP TABLE note", "table public.note dropped"),
    "a function": ("CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'", "function public.f() made"),
    "a function replaced": (
        "CREATE OR REPLACE FUNCTION twice(x int) RETURNS int LANGUAGE sql AS 'SELECT 3 * x'",
        "function public.twice(integer) changed",
    ),
    "a view": ("CREATE OR REPLACE VIEW cheap AS SELECT * FROM item WHERE n < 11", "view public.cheap changed"),
    "a type": ("ALTER TYPE mood ADD VALUE 'so-so'", "type public.mood changed"),
    "a schema": ("CREATE SCHEMA elsewhere", "schema elsewhere made"),
    "a large object": ("SELECT lo_from_bytea(77, 'abc')", "pg_catalog.pg_largeobject 0 → 1 rows (1 written); large object 77 made"),
    "a setting": (
        "ALTER DATABASE shop_test SET timezone = 'Asia/Tokyo'",
        "setting TimeZone of this database: none → 'Asia/Tokyo'",
    ),
    "a right on the database": (
        "REVOKE CONNECT ON DATABASE shop_test FROM PUBLIC",
        "setting rights of this database: '{=Tc/dev,dev=CTc/dev}' → '{=T/dev,dev=CTc/dev}'",
    ),
    "a comment on the database": ("COMMENT ON DATABASE shop_test IS 'mine'", "setting comment of this database: none → 'mine'"),
    "a comment on a table": ("COMMENT ON TABLE note IS 'mine'", "table public.note changed"),
    "a comment on a column": ("COMMENT ON COLUMN note.body IS 'mine'", "table public.note changed"),
    "a comment on a function": ("COMMENT ON FUNCTION twice IS 'mine'", "function public.twice(integer) changed"),
    "a comment on a type": ("COMMENT ON TYPE mood IS 'mine'", "type public.mood changed"),
    "a comment on a schema": ("COMMENT ON SCHEMA public IS 'mine'", "schema public changed"),
    "a column's storage": ("ALTER TABLE note ALTER body SET STORAGE EXTERNAL", "table public.note changed"),
    "a column's statistics": ("ALTER TABLE note ALTER body SET STATISTICS 7", "table public.note changed"),
    "a view emptied": ("REFRESH MATERIALIZED VIEW total WITH NO DATA", "materialised view public.total changed"),
    "an empty view": ("CREATE MATERIALIZED VIEW hollow AS SELECT 1 WITH NO DATA", "materialised view public.hollow made"),
    "a text search dictionary": (
        "CREATE TEXT SEARCH DICTIONARY d (TEMPLATE = simple)",
        "text search dictionary d made",
    ),
    "a conversion": ("CREATE CONVERSION c FOR 'UTF8' TO 'LATIN1' FROM utf8_to_iso8859_1", "conversion c made"),
    "a transform": (
        "CREATE TRANSFORM FOR int LANGUAGE sql (FROM SQL WITH FUNCTION prsd_lextype(internal), TO SQL WITH FUNCTION int4recv(internal))",
        "transform for integer made",
    ),
    "an operator class": (
        "CREATE OPERATOR CLASS o FOR TYPE int USING btree AS FUNCTION 1 btint4cmp(int, int)",
        "operator class o for integer made; operator family o made",
    ),
    "an access method": ("CREATE ACCESS METHOD a TYPE TABLE HANDLER heap_tableam_handler", "access method a made"),
    "a role": ("CREATE ROLE passer", "role passer made (outlives a reset)"),
    "a role's setting": (
        "ALTER ROLE dev SET work_mem = '9MB'",
        "setting work_mem of role dev everywhere: none → '9MB' (outlives a reset)",
    ),
    "a prepared transaction": (
        "BEGIN; INSERT INTO ticket VALUES (7, 7); PREPARE TRANSACTION 'left1'",
        "prepared transaction 'left1' of dev",
    ),
}


@pytest.mark.parametrize(("sql", "expected"), SOMETHING.values(), ids=list(SOMETHING))
def test_what_is_left_is_named_once(watched: Watched, sql: str, expected: str) -> None:
    """Each kind is named exactly, and is the next package's starting point."""
    role = "su" if any(word in sql for word in ("PROGRAM", "pg_stat_reset", "TRIGGER ALL", "TRANSFORM", "CLASS", "METHOD")) else "dev"
    watched.run(sql, role=role)
    assert watched.summary() == expected
    assert watched.summary() == "-"


EXCHANGES = {
    "two rows exchange a number": "UPDATE typed SET n = 3 - n WHERE id < 3",
    "two rows exchange a text": "UPDATE typed SET t = CASE id WHEN 1 THEN 'two' ELSE 'one' END WHERE id < 3",
    "two rows exchange what has no hash of its own": "UPDATE typed SET j = CASE id WHEN 1 THEN '[2]'::json ELSE '[1]' END WHERE id < 3",
    "two columns exchange their values": "UPDATE typed SET m = n, n = m WHERE id = 3",
    "an equal number of another scale": "UPDATE typed SET price = 1.00",
    "an equal number inside a document": """UPDATE typed SET b = '{"a": 1.00}'""",
    "an equal text to a collation that knows no case": "UPDATE typed SET loose = 'A'",
    "an equal duration": "UPDATE typed SET span = '24 hours'",
    "an equal zero": "UPDATE typed SET f = '-0'",
    "nothing instead of an empty text": "UPDATE typed SET e = NULL",
}


@pytest.mark.parametrize("sql", EXCHANGES.values(), ids=list(EXCHANGES))
def test_values_that_only_look_equal_differ(watched: Watched, sql: str) -> None:
    """Rows are compared by what they are, not by what their types take for equal, and each as a whole; undone, it is nothing."""
    watched.run(
        """CREATE COLLATION caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
        CREATE TABLE typed(id int PRIMARY KEY, n int, m int, t text, e text, j json, b jsonb, price numeric, span interval, f float8,
                           "odd %s ""name" timestamptz, loose text COLLATE caseless);
        INSERT INTO typed SELECT g, g, 7, CASE g WHEN 1 THEN 'one' ELSE 'two' END, '', format('[%s]', g)::json, '{"a": 1.0}', 1.0, '1 day', 0,
                                 '2026-01-01', 'a' FROM generate_series(1, 3) g;
        CREATE TABLE original AS TABLE typed; CREATE TABLE bare(); INSERT INTO bare DEFAULT VALUES"""
    )
    watched.watch_anew()
    watched.run(sql)
    assert watched.summary().startswith("public.typed 3 → 3 rows")
    watched.run("TRUNCATE typed; INSERT INTO typed TABLE original")
    assert watched.summary().startswith("public.typed 3 → 3 rows (3 written)")
    watched.run("DELETE FROM typed; INSERT INTO typed TABLE original; TRUNCATE bare; INSERT INTO bare DEFAULT VALUES")
    assert watched.summary() == "-"


def test_a_database_that_was_made_is_named(watched: Watched) -> None:
    """It outlives a reset, but for the role's own where the reset clears those."""
    watched.run("CREATE DATABASE other")
    assert watched.summary() == "database other made (outlives a reset)"


def test_a_database_that_the_reset_clears_does_not_outlive_it(watched: Watched) -> None:
    """With `createdb = true` the role's own are dropped, and another's are not."""
    watched.watch_anew(clears=True)
    watched.run("CREATE DATABASE other")
    assert watched.summary() == "database other made"
    watched.run("CREATE DATABASE third", role="su")
    assert watched.summary() == "database third made (outlives a reset)"


def test_a_changed_table_comes_with_some_of_its_rows(watched: Watched) -> None:
    """The rows to blame: three at most, as text."""
    watched.run("INSERT INTO ticket SELECT g, g FROM generate_series(11, 15) g")
    found = watched.watch.look()
    assert found is not None
    assert found.tables == (TableChange("public.ticket", 1, 6, 5, ("(11,11)", "(12,12)", "(13,13)")),)


def test_a_sequence_that_only_served_rolled_back_inserts_is_no_finding(watched: Watched) -> None:
    """PostgreSQL never takes such a value back: recorded, but no line of its own."""
    watched.run("BEGIN; INSERT INTO item(name) VALUES ('a'), ('b'); ROLLBACK")
    found = watched.watch.look()
    assert found is not None
    assert found == (found._replace(summary="", sequences=(SequenceMove("public.item_id_seq", 20, 22, by_inserts=True),)))
    watched.run("BEGIN; INSERT INTO ticket(seat) VALUES (50); ROLLBACK")
    assert watched.summary() == ""
    watched.run("BEGIN; INSERT INTO item(name) VALUES ('a'); SELECT nextval('item_id_seq'); ROLLBACK")
    assert watched.summary() == "sequence public.item_id_seq moved 22 → 24"


def test_a_session_left_open_is_named_with_its_lock(watched: Watched) -> None:
    """Who, in what state, how old; and what it holds. What it committed before counts, what is still open does not."""
    with watched.cluster.connect("dev", "shop_test", application_name="left behind") as session:
        session.execute("INSERT INTO ticket VALUES (8, 8)")
        session.execute("SELECT pg_advisory_lock(42), pg_advisory_lock(4, 2)")
        session.execute("BEGIN; UPDATE item SET n = 9")
        found = watched.watch.look()
        assert found is not None
        (left,) = found.sessions
        pid = session.info.backend_pid
        assert (left.pid, left.user, left.application, left.state) == (pid, "dev", "left behind", "idle in transaction")
        assert 0 < left.age < 60
        assert set(found.locks) == {LeftLock("42", pid), LeftLock("4, 2", pid)}
        assert found.tables == (TableChange("public.ticket", 1, 2, 1, ("(8,8)",)),)
        assert watched.summary() == "-"
        session.execute("COMMIT")
    assert watched.summary() == "public.item 20 → 20 rows (20 written)"


def test_a_table_that_a_left_session_keeps_locked_is_looked_at_later(watched: Watched) -> None:
    """Nothing waits for it, and nothing that was committed to it is forgotten."""
    watched.run("UPDATE item SET n = 3 WHERE id = 1")
    with watched.cluster.connect("dev", "shop_test") as session:
        session.execute("BEGIN; LOCK TABLE item")
        assert re.fullmatch(r"session \d+ of dev \(unnamed, idle in transaction, .* s old\)", watched.summary())
        session.execute("ROLLBACK")
    assert watched.summary() == "public.item 20 → 20 rows (1 written)"


def test_somebody_elses_open_session_is_not_the_packages(watched: Watched) -> None:
    """A session that was there before is not left behind; what is written over it is still seen."""
    with watched.cluster.connect("dev", "shop_test") as session:
        watched.watch.begin()
        watched.run("SELECT 1")
        assert watched.summary() == "-"
        session.execute("DELETE FROM ticket")
        assert watched.summary() == "public.ticket 1 → 0 rows (0 written)"


def test_a_lost_database_is_a_finding(watched: Watched) -> None:
    """A package that drops its database is told so, and the run goes on."""
    watched.cluster.execute("DROP DATABASE shop_test")
    assert watched.summary().startswith("it cannot be looked at: ")


def test_no_session_of_ours_stays_open(watched: Watched) -> None:
    """Between two looks nobody is connected: a package may count sessions."""
    watched.watch.look()
    count = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'shop_test'"
    for _ in range(200):
        if watched.cluster.value(count) == 0:
            break
    assert watched.cluster.value(count) == 0


def test_an_ordinary_role_sees_its_own(watched: Watched) -> None:
    """On an external server the owner looks: what it may not read is judged by its counters."""
    watched.run("CREATE TABLE secret(id int); REVOKE ALL ON secret FROM PUBLIC", role="su")
    beside = watched.cluster.connect("dev", "postgres")
    watch = Watch(parse_dsn("OWN", watched.cluster.dsn("dev", "shop_test")), "dev", beside, shared=True)
    watch.begin()
    watched.run("DELETE FROM ticket")
    watched.run("INSERT INTO secret VALUES (1)", role="su")
    found = watch.look()
    assert found is not None
    assert (
        found.summary == "public.ticket 1 → 0 rows (0 written); public.secret (1 row(s) written, perhaps rolled back: it may not be read)"
    )
    watched.cluster.execute("CREATE DATABASE of_somebody")
    assert watch.look() is None
    beside.close()


def test_a_setting_of_the_session_changes_no_value(watched: Watched) -> None:
    """A time zone or float format that a package sets for the database is a setting, and no other row."""
    watched.run("CREATE TABLE times AS SELECT now() AS at, 0.1::float8 / 3 AS x, '\\xab'::bytea AS b, interval '1 day' AS i")
    watched.watch.begin()
    watched.run("ALTER DATABASE shop_test SET timezone = 'Asia/Tokyo'; ALTER ROLE dev SET extra_float_digits = 0; UPDATE times SET x = x")
    found = watched.watch.look()
    assert found is not None
    assert found.tables == ()


STATEMENTS = (
    "INSERT INTO ticket VALUES ({n}, {n}) ON CONFLICT DO NOTHING",
    "DELETE FROM ticket WHERE seat = {n}",
    "UPDATE ticket SET number = {n} WHERE seat = {m}",
    "UPDATE item SET n = {n} WHERE id = {m}",
    "UPDATE item SET n = 0",
    'INSERT INTO "odd ""name" VALUES ({n})',
    'DELETE FROM "odd ""name" WHERE id = {n}',
    "INSERT INTO part VALUES ({n}, 'north')",
    "DELETE FROM part",
    "TRUNCATE ticket",
    "TRUNCATE part",
    "VACUUM ticket",
    "REFRESH MATERIALIZED VIEW total",
)
TABLES = ("item", "note", "ticket", '"odd ""name"', "part_north", "total")


def everything(watched: Watched) -> dict[str, list[Any]]:
    """Read every row of every table."""
    return {f"public.{name}": sorted(map(str, watched.run(f"SELECT * FROM {name}"))) for name in TABLES}


@pytest.mark.parametrize("seed", range(3))
def test_the_tables_named_are_exactly_those_that_differ(watched: Watched, seed: int, rounds: int) -> None:
    """Packages of random statements, committed, rolled back or undone: residue equals a comparison of all rows."""
    chance = random.Random(seed)
    before = everything(watched)
    watched.watch.begin()
    for _ in range(rounds * 5):
        for _ in range(chance.randint(0, 3)):
            statements = [
                s.format(n=chance.randint(1, 4), m=chance.randint(1, 4)) for s in chance.choices(STATEMENTS, k=chance.randint(1, 4))
            ]
            if any("VACUUM" in statement for statement in statements):
                statements = statements[:1]
            end = "" if len(statements) == 1 else chance.choice(["COMMIT", "COMMIT", "ROLLBACK"])
            watched.run("; ".join(["BEGIN", *statements, end] if end else statements))
        after = everything(watched)
        found = watched.watch.look()
        named = {one.name: (one.before, one.after) for one in found.tables} if found else {}
        assert named == {name: (len(before[name]), len(after[name])) for name in after if before[name] != after[name]}
        before = after
