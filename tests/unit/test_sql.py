"""Splitting migration files, finding their traps, locating errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import sql
from harness.sql import MARK, Place

MIG_02 = """\
-- don't stop here; really
CREATE FUNCTION f() RETURNS text LANGUAGE plpgsql AS $body$
DECLARE r text; BEGIN
  RAISE NOTICE 'a % and %', 1, 2;
  EXECUTE $q$ SELECT 'x;y' || $$;$$ $q$ INTO r; RETURN r; END $body$;
/* ; ' */ CREATE TABLE lit(v text);
INSERT INTO lit VALUES ('50%'), ('%s'), ('%(a)s'), ('12:30:00'), (' :name '), ('{"a":true}'), ('a;b'), (E'\\'');
INSERT INTO lit SELECT 'q' WHERE '{"k":1}'::jsonb ? 'k';
"""


def texts(text: str) -> list[str]:
    """Return the statements alone."""
    return [statement.text for statement in sql.split(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", [], id="nothing"),
        pytest.param(" ; ;; -- x;\n/* y; */", [], id="empty statements and comments"),
        pytest.param("SELECT 1", ["SELECT 1"], id="no semicolon at the end"),
        pytest.param("SELECT 1;SELECT 2 ;", ["SELECT 1", "SELECT 2"], id="two"),
        pytest.param("SELECT 'a;b''c;d'; x", ["SELECT 'a;b''c;d'", "x"], id="quotes"),
        pytest.param("SELECT 'a\\'; x", ["SELECT 'a\\'", "x"], id="a backslash in a plain string is only a backslash"),
        pytest.param("SELECT E'a\\';b'; x", ["SELECT E'a\\';b'", "x"], id="a backslash in an E string escapes"),
        pytest.param("SELECT e'a'';\\\\'; x", ["SELECT e'a'';\\\\'", "x"], id="both escapes in an E string"),
        pytest.param("SELECT E'a'\n  'b\\';c'; x", ["SELECT E'a'\n  'b\\';c'", "x"], id="an E string goes on in the next line"),
        pytest.param("SELECT E'a' -- it's\n 'b\\';c'; x", ["SELECT E'a' -- it's\n 'b\\';c'", "x"], id="with a comment between"),
        pytest.param("SELECT type'a\\'; x", ["SELECT type'a\\'", "x"], id="a word that ends in e makes no E string"),
        pytest.param("SELECT U&'\\0061', B'1', N'n;'; x", ["SELECT U&'\\0061', B'1', N'n;'", "x"], id="other prefixes"),
        pytest.param('SELECT "a;""b;"; x', ['SELECT "a;""b;"', "x"], id="quoted names"),
        pytest.param("SELECT $$a;'$$, $x$;$y$;$x$; x", ["SELECT $$a;'$$, $x$;$y$;$x$", "x"], id="dollar quotes"),
        pytest.param("SELECT a$b$c; x$y$z", ["SELECT a$b$c", "x$y$z"], id="a dollar inside a name quotes nothing"),
        pytest.param("SELECT $1; $2", ["SELECT $1", "$2"], id="parameters"),
        pytest.param("SELECT $é$;$é$; x", ["SELECT $é$;$é$", "x"], id="a tag beyond ASCII"),
        pytest.param("/* a /* b; */ ; */ x; y", ["x", "y"], id="nested comments"),
        pytest.param("a -- b;\n; c -- d\r; e", ["a", "c", "e"], id="line comments end with either newline"),
        pytest.param("SELECT 1 *-- x;\n 2; y", ["SELECT 1 *-- x;\n 2", "y"], id="a comment ends an operator"),
        pytest.param("CREATE RULE r AS ON INSERT TO t DO (a; b); c", ["CREATE RULE r AS ON INSERT TO t DO (a; b)", "c"], id="rules"),
        pytest.param("CREATE TABLE a(i int;\nx", ["CREATE TABLE a(i int;\nx"], id="an open parenthesis keeps all"),
        pytest.param("a); b", ["a)", "b"], id="a parenthesis too many"),
        pytest.param(
            "CREATE OR REPLACE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; SELECT 2; END; x",
            ["CREATE OR REPLACE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; SELECT 2; END", "x"],
            id="BEGIN ATOMIC",
        ),
        pytest.param(
            "create procedure p() begin /* c */ atomic a; b; end; x",
            ["create procedure p() begin /* c */ atomic a; b; end", "x"],
            id="begin atomic",
        ),
        pytest.param(
            "CREATE FUNCTION app.begin() RETURNS int AS '' ; x",
            ["CREATE FUNCTION app.begin() RETURNS int AS ''", "x"],
            id="a function named begin",
        ),
        pytest.param("BEGIN; END; x", ["BEGIN", "END", "x"], id="BEGIN outside a function"),
        pytest.param("SELECT 'never; ends", ["SELECT 'never; ends"], id="an open quote keeps all"),
        pytest.param("SELECT E'never; \\", ["SELECT E'never; \\"], id="an open E string keeps all"),
        pytest.param("SELECT $a$ never; $b$", ["SELECT $a$ never; $b$"], id="an open dollar quote keeps all"),
        pytest.param("x; /* never; /* */", ["x"], id="an open comment swallows all"),
        pytest.param('SELECT "never; ', ['SELECT "never; '], id="an open name keeps all"),
        pytest.param("a;\r\nb;\r\n", ["a", "b"], id="CRLF"),
        pytest.param(
            "SET standard_conforming_strings = off; SELECT 'a\\';b'; x",
            ["SET standard_conforming_strings = off", "SELECT 'a\\';b'", "x"],
            id="old strings",
        ),
    ],
)
def test_split_cuts_where_the_server_would(text: str, expected: list[str]) -> None:
    """Each statement is cut where PostgreSQL's own scanner sees its end."""
    assert expected == texts(text)


def test_split_leaves_quoting_and_placeholders_alone() -> None:
    """The file of MIG-02 has four statements, each as written."""
    found = sql.split(MIG_02)
    assert [one.words[:2] for one in found] == [("CREATE", "FUNCTION"), ("CREATE", "TABLE"), ("INSERT", "INTO"), ("INSERT", "INTO")]
    assert found[0].text.endswith("RETURN r; END $body$")
    assert all(MIG_02[one.start : one.end] == one.text for one in found)


PIECES = st.one_of(
    st.text(st.characters(exclude_characters="'\\\0"), max_size=8).map(lambda text: f"'{text}'"),
    st.text(st.characters(exclude_characters='"\0'), min_size=1, max_size=8).map(lambda text: f'"{text}"'),
    st.text(st.characters(exclude_characters="$\0"), max_size=8).map(lambda text: f"$q${text}$q$"),
    st.text(st.characters(exclude_characters="\r\n\0"), max_size=8).map(lambda text: f"-- x{text}\n"),
    st.text(st.characters(exclude_characters="*/\0"), max_size=8).map(lambda text: f"/*{text}/*;*/;*/"),
    st.text(st.sampled_from("ab;'"), max_size=8).map(lambda text: "E'" + text.replace("'", "\\'") + "\\\\'"),
    st.sampled_from(["word", "e", "E ", "x1", "12", "$1", " ", "+", "-", "/", "(a;b)", "BEGIN", "END", "CASE", "é"]),
)


@given(st.lists(st.lists(PIECES, max_size=6).map(" ".join), max_size=6))
def test_joining_and_splitting_are_inverse(statements: list[str]) -> None:
    """Whatever stands in quotes, comments and parentheses, the semicolons between statements are the ones that split."""
    found = texts("\n;".join(f"SELECT {one}" for one in statements))
    assert len(statements) == len(found)
    assert all(f"SELECT {one}".startswith(text) for one, text in zip(statements, found, strict=True))


@given(
    st.text(max_size=200)
    | st.lists(PIECES | st.sampled_from([";", "'", '"', "$$", "/*", "*/", "\\", "--", "\n"]), max_size=30).map("".join)
)
def test_every_text_is_read(text: str) -> None:
    """Reading never fails, and each statement is a part of the text, in order, without overlap."""
    end = 0
    for statement in sql.read(text).statements:
        assert end <= statement.start < statement.end <= len(text)
        assert text[statement.start : statement.end] == statement.text
        end = statement.end


@given(st.text(st.sampled_from("ab\n\ré"), max_size=40), st.integers(0, 40))
def test_a_place_leads_back_to_its_character(text: str, offset: int) -> None:
    """Line and column, counted from 1, name the character they came from."""
    offset = min(offset, len(text))
    place = sql.locate(text, offset)
    assert offset == sum(len(line) + 1 for line in text.split("\n")[: place.line - 1]) + place.column - 1
    assert str(place) == f"{place.line}:{place.column}"


def test_a_place_counts_from_one() -> None:
    """The first character is 1:1, the one after a newline begins the next line."""
    assert [Place(1, 1), Place(1, 2), Place(2, 1)] == [sql.locate("a\nb", offset) for offset in (0, 1, 2)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", "ours", id="empty"),
        pytest.param("CREATE TABLE a(); SAVEPOINT s; ROLLBACK TO s; ROLLBACK TO SAVEPOINT s", "ours", id="savepoints"),
        pytest.param("BEGIN; a; COMMIT;", "own", id="wrapped"),
        pytest.param("START TRANSACTION ISOLATION LEVEL SERIALIZABLE; a; END TRANSACTION", "own", id="wrapped in other words"),
        pytest.param("BEGIN; a; COMMIT; BEGIN; b; COMMIT AND NO CHAIN;", "own", id="two of them"),
        pytest.param("BEGIN; a; COMMIT AND CHAIN; b; COMMIT", "own", id="a chain"),
        pytest.param("BEGIN; a; ROLLBACK; BEGIN; b; COMMIT", "own", id="one of them undone"),
        pytest.param("BEGIN; COMMIT; b; BEGIN; COMMIT", "own", id="and one between"),
        pytest.param(f"{MARK}\nCOMMIT; a; BEGIN", "none", id="marked"),
        pytest.param("a;\n  --harness:No-Transaction \nb", "none", id="marked in the middle"),
        pytest.param(f"SELECT '\n{MARK}\n'", "ours", id="a mark in a string is none"),
        pytest.param("-- harness: the test harness needs this table for its own sake\na", "ours", id="prose about a harness"),
        pytest.param("-- migrate:up transaction:false\na", "none", id="dbmate's mark"),
        pytest.param("-- +goose NO TRANSACTION\n-- +goose Up\na", "none", id="goose's mark"),
        pytest.param("-- +migrate Up notransaction\na", "none", id="sql-migrate's mark"),
        pytest.param("CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; END", "ours", id="a body's END ends no transaction"),
    ],
)
def test_whose_transaction_a_file_runs_in(text: str, expected: str) -> None:
    """A file runs in our transaction, in its own, or in none."""
    script = sql.read(text)
    assert (expected, ()) == (script.transaction, script.traps)


@pytest.mark.parametrize(
    ("text", "start", "finding"),
    [
        pytest.param("a; COMMIT; b", 3, "midway with COMMIT", id="COMMIT"),
        pytest.param("a; COMMIT; BEGIN; b", 3, "midway with COMMIT", id="COMMIT and BEGIN"),
        pytest.param("a; ROLLBACK", 3, "midway with ROLLBACK", id="ROLLBACK"),
        pytest.param("a; ABORT", 3, "midway with ABORT", id="ABORT"),
        pytest.param("a; PREPARE TRANSACTION 'x'", 3, "midway with PREPARE", id="PREPARE"),
        pytest.param("BEGIN; a; PREPARE TRANSACTION 'x'", 10, "midway with PREPARE", id="wrapped for PREPARE"),
        pytest.param("BEGIN; a; END; b", 10, "midway with END", id="more behind the COMMIT"),
        pytest.param("a; BEGIN; b; COMMIT", 13, "midway with COMMIT", id="more before the BEGIN"),
        pytest.param("a; BEGIN; b", 3, "leaves the transaction open that BEGIN begins", id="BEGIN alone"),
        pytest.param("BEGIN; a; COMMIT AND CHAIN", 10, "leaves the transaction open that COMMIT begins", id="chained to the end"),
        pytest.param("BEGIN; a; ROLLBACK;", 10, "undoes its own work with ROLLBACK", id="a rehearsal"),
        pytest.param("a;\n\\connect x\nb", 3, "psql command \\connect", id="connect"),
        pytest.param("a \\gexec", 2, "psql command \\gexec", id="gexec"),
        pytest.param("SELECT 1 \\restrict x", 9, "psql command \\restrict", id="restrict inside a statement"),
        pytest.param("COPY a FROM stdin;\n1\n", 0, "COPY data that never ends", id="COPY without an end"),
        pytest.param("COPY a FROM stdin; x\n1\n\\.\n", 17, "on the same line", id="COPY with more behind it"),
        pytest.param("a; /* b; /* c */", 3, "comment that begins here and never ends", id="a comment that swallows the rest"),
        pytest.param("COPY a FROM stdin", 0, "COPY data that never ends", id="COPY at the very end"),
        pytest.param("COPY (SELECT 1) TO STDOUT;", 0, "COPY … TO STDOUT", id="COPY to nobody"),
        pytest.param("-- harness: no-transactions\na", 0, "unknown mark", id="a mark misspelt"),
        pytest.param("-- harness: no transaction\na", 0, "unknown mark", id="a mark in two words"),
        pytest.param("-- harness: x\na", 0, "unknown mark", id="a mark that is none"),
    ],
)
def test_traps_are_found_before_anything_runs(text: str, start: int, finding: str) -> None:
    """What must not reach a server is found by reading, and its place with it."""
    (trap,) = sql.read(text).traps
    assert start == trap.start
    assert finding in trap.finding
    assert trap.advice.endswith(".")


def test_a_dump_is_read_in_pieces() -> None:
    """A dump's key lines are left out, and the data of a COPY are neither statements nor searched for traps."""
    text = "\\restrict k;\nCOPY a (b) FROM stdin;\n1;\\n'\n\\.\n\nSELECT 1;\n\\unrestrict k\n"
    script = sql.read(text)
    assert [one.text for one in script.statements] != ["COPY a (b) FROM stdin", "x\n"]
    copy, *_ = script.statements
    assert copy.data is not None
    assert text[slice(*copy.data)] == "1;\\n'\n"
    assert (script.piecewise, script.transaction, script.traps) == (True, "ours", ())


def test_copy_data_may_be_empty_and_end_in_crlf() -> None:
    """A COPY without rows has empty data; the end mark may carry a carriage return."""
    text = "COPY a FROM stdin;\r\n\\.\r\nSELECT 1;"
    copy, after = sql.split(text)
    assert copy.data is not None
    assert (text[slice(*copy.data)], after.text) == ("", "SELECT 1")


@pytest.mark.parametrize("mark", ["migrate:", "+goose ", "+migrate "])
def test_the_part_for_going_down_is_left_out(mark: str) -> None:
    """A file with both ways in it, as dbmate, goose and sql-migrate have them, is its way up alone."""
    script = sql.read(f"-- {mark}up\nCREATE TABLE a();\n-- {mark}down\nDROP TABLE a; COMMIT; \\q\n'")
    assert [one.text for one in script.statements] == ["CREATE TABLE a()"]
    assert (script.sections, script.piecewise, script.traps) == (True, True, ())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("SELECT 1", [], id="none"),
        pytest.param("x;\nCREATE EXTENSION citext", [("citext", 3)], id="plain"),
        pytest.param('create extension if not exists "uuid-ossp" schema x;', [("uuid-ossp", 0)], id="quoted"),
        pytest.param("CREATE EXTENSION PostGIS;CREATE EXTENSION x", [("postgis", 0), ("x", 25)], id="folded"),
        pytest.param("-- CREATE EXTENSION a\nCOMMENT ON EXTENSION b IS 'CREATE EXTENSION c'", [], id="mentioned only"),
        pytest.param("CREATE EXTENSION", [], id="broken"),
    ],
)
def test_extensions_that_a_file_asks_for(text: str, expected: list[tuple[str, int]]) -> None:
    """Every CREATE EXTENSION is found with its name as the server will read it."""
    assert expected == sql.extensions(text)
