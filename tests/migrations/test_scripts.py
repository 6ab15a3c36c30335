"""One SQL file after the other: transactions, clean sessions, text that arrives as written, errors that name their place."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

import hypothesis
import pytest
from hypothesis import strategies as st

from harness import database, sql
from harness.errors import ResetFailed
from harness.settings import Stream
from harness.targets import parse_dsn
from tests.builders import ScratchCluster
from tests.migrations.project import Project
from tests.unit.test_sql import MIG_02

if TYPE_CHECKING:
    from harness.database import Connection


@pytest.fixture(scope="module")
def session(scratch_cluster: ScratchCluster) -> Iterator[Connection]:
    """Return a session of ours."""
    with database.connect(parse_dsn("X", scratch_cluster.dsn()), purpose="test") as connection:
        yield connection


def failure(project: Project, files: dict[str, str], *of: Stream) -> ResetFailed:
    """Apply files that must fail and return how."""
    project.files(files)
    with pytest.raises(ResetFailed) as caught:
        project.apply(*of)
    return caught.value


def test_files_that_need_or_must_leave_a_transaction(project: Project) -> None:
    """MIG-01: concurrent indexes and VACUUM run under the mark, and a new enum value serves the next file."""
    project.files(
        {
            "0002_t.sql": "CREATE TYPE st AS ENUM ('a'); CREATE TABLE t(id int, s st);",
            "0003_i.sql": f"{sql.MARK}\nCREATE INDEX CONCURRENTLY i1 ON t(id);\nCREATE INDEX CONCURRENTLY i2 ON t(s);\nVACUUM t;",
            "0004_v.sql": "ALTER TYPE st ADD VALUE 'b';",
            "0005_d.sql": "ALTER TABLE t ALTER s SET DEFAULT 'b'; INSERT INTO t(id) VALUES (1);",
        }
    )
    assert project.apply() == ["core/0002_t.sql", "core/0003_i.sql", "core/0004_v.sql", "core/0005_d.sql"]
    assert project.rows("SELECT indexrelid::regclass::text FROM pg_index WHERE indisvalid AND indrelid = 't'::regclass ORDER BY 1") == [
        ("i1",),
        ("i2",),
    ]
    assert project.rows("SELECT id, s::text FROM t") == [(1, "b")]


def test_without_the_mark_the_error_names_the_mark(project: Project) -> None:
    """MIG-01: 25001 comes with stream, file, line, statement and the line that mends it."""
    found = failure(project, {"0002_t.sql": "CREATE TABLE t(id int);", "0003_i.sql": "-- now\nCREATE INDEX CONCURRENTLY i1 ON t(id);"})
    assert found.message == (
        f"stream 'core', {project.root}/core/0003_i.sql:2:1: CREATE INDEX CONCURRENTLY cannot run inside a transaction block "
        "(SQLSTATE 25001) in: CREATE INDEX CONCURRENTLY i1 ON t(id)"
    )
    assert sql.MARK in found.next


def test_text_arrives_as_written(project: Project) -> None:
    """MIG-02: percent signs, colons, question marks, semicolons and dollar quotes mean to us what they mean to PostgreSQL."""
    project.files({"0001_f.sql": MIG_02})
    project.apply()
    assert project.value("SELECT f()") == "x;y;"
    literals = {"50%", "%s", "%(a)s", "12:30:00", " :name ", '{"a":true}', "a;b", "'", "q"}
    assert {value for (value,) in project.rows("SELECT v FROM lit")} == literals
    assert project.value("SELECT prosrc FROM pg_proc WHERE proname = 'f'") == MIG_02.split("$body$")[1]


@pytest.mark.parametrize("mark", ["", f"{sql.MARK}\n"], ids=["in one string", "statement by statement"])
def test_bodies_and_literals_are_the_same_either_way(project: Project, mark: str) -> None:
    """SQL-standard bodies, nested comments, E strings and rules survive the splitter as they survive the server."""
    project.files(
        {
            "0001_all.sql": f"""{mark}/* a /* ; */ ; */
CREATE TABLE t(v text); CREATE TABLE log(v text);
CREATE RULE r AS ON INSERT TO t DO ALSO (INSERT INTO log VALUES ('a;'); INSERT INTO log VALUES (new.v));
CREATE FUNCTION g(i int) RETURNS int BEGIN ATOMIC SELECT CASE WHEN i > 0 THEN 1 ELSE 2 END; SELECT i + 1; END;
CREATE PROCEDURE p(w text) LANGUAGE sql BEGIN ATOMIC INSERT INTO t VALUES (w); INSERT INTO t VALUES (w || ';'); END;
CALL p(E'it\\'s'
  '\\;');
"""
        }
    )
    project.apply()
    assert project.value("SELECT g(2)") == 3
    assert [value for (value,) in project.rows("SELECT v FROM t")] == ["it's;", "it's;;"]
    assert project.value("SELECT count(*) FROM log") == 4


def test_every_file_finds_a_clean_session(project: Project) -> None:
    """What a file sets, makes or takes in its session is gone for the next: also after a file without a transaction."""
    dirt = """
        CREATE SCHEMA IF NOT EXISTS elsewhere; SET search_path = elsewhere; SET statement_timeout = 60000; SET TimeZone = 'Asia/Tokyo';
        SET standard_conforming_strings = off; SET client_encoding = 'LATIN1'; SET my.own = 'x';
        CREATE TEMP TABLE IF NOT EXISTS t(hidden int); PREPARE ready AS SELECT 1; LISTEN news; SELECT pg_advisory_lock(7); SET ROLE dev;
        DECLARE c CURSOR WITH HOLD FOR SELECT 1; SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY;"""
    probe = """
        CREATE TABLE public.probe{0} AS SELECT current_setting('search_path') AS path, current_setting('statement_timeout') AS patience,
        current_setting('TimeZone') AS zone, current_setting('client_encoding') AS encoding, current_setting('my.own', true) AS own,
        current_setting('transaction_isolation') AS isolation, current_setting('role') AS role, pg_is_other_temp_schema(pg_my_temp_schema()) AS t,
        to_regclass('t')::text AS hidden, (SELECT count(*) FROM pg_prepared_statements) + (SELECT count(*) FROM pg_listening_channels())
        + (SELECT count(*) FROM pg_cursors) AS leftovers, pg_try_advisory_lock(7) AS free;"""
    project.files(
        {
            "1_probe.sql": probe.format(1),
            "2_dirt.sql": dirt,
            "3_probe.sql": probe.format(3),
            "4_dirt.sql": f"{sql.MARK}\n{dirt}",
            "5_probe.sql": probe.format(5),
        }
    )
    project.apply()
    first, third, fifth = (project.rows(f"SELECT * FROM probe{number}") for number in (1, 3, 5))
    assert first == third == fifth
    assert first[0][1:2] + first[0][4:5] == ("0", None)


def test_settings_for_new_sessions_reach_the_next_file(project: Project) -> None:
    """After ALTER DATABASE or ALTER ROLE the next file runs on a session that has them, as it would on another day."""
    project.files(
        {
            "1_path.sql": "CREATE SCHEMA app; DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = app', current_database()); END $$;",
            "2_table.sql": "CREATE TABLE there(i int);",
        }
    )
    project.apply()
    assert project.tables() == {"app.there"}


def test_a_custom_setting_of_a_function_does_not_stay(project: Project) -> None:
    """A setting with a dot that an earlier file's function makes is absent, not empty, in the file after."""
    project.files(
        {
            "1_f.sql": "CREATE FUNCTION tenant() RETURNS text LANGUAGE sql AS $$ SELECT set_config('app.tenant', 'a', false) $$;",
            "2_call.sql": "SELECT tenant();",
            "3_probe.sql": "CREATE TABLE probe AS SELECT current_setting('app.tenant', true) AS v;",
        }
    )
    project.apply()
    assert project.rows("SELECT v FROM probe") == [(None,)]


def test_a_file_in_its_own_transaction_runs_as_written(project: Project) -> None:
    """BEGIN … COMMIT around a file is its own transaction, with the ledger's row in it."""
    project.files(
        {
            "1_wrapped.sql": "-- by hand\nBEGIN ISOLATION LEVEL SERIALIZABLE;\nCREATE TABLE a AS SELECT current_setting('transaction_isolation') AS v;\nCOMMIT;\n-- end\n",
            "2_twice.sql": "START TRANSACTION; CREATE TABLE b(); COMMIT; BEGIN; CREATE TABLE c(); END;",
            "3_role.sql": "BEGIN; SET LOCAL ROLE dev; SET search_path = ''; CREATE TABLE public.d(); COMMIT",
        }
    )
    project.apply()
    assert project.rows("SELECT v FROM a") == [("serializable",)]
    assert project.tables() == {"a", "b", "c", "d"}
    assert project.rows(
        "SELECT l.xmin = c.xmin FROM pgharness.applied l, pg_class c WHERE l.file = '1_wrapped.sql' AND c.relname = 'a'"
    ) == [(True,)]


def test_the_ledger_row_commits_with_the_file(project: Project) -> None:
    """File and ledger row are one transaction."""
    project.files({"1_a.sql": "CREATE TABLE a();"})
    project.apply()
    assert project.rows("SELECT l.xmin = c.xmin FROM pgharness.applied l, pg_class c WHERE c.relname = 'a'") == [(True,)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("CREATE TABLE a(); COMMIT; CREATE TABLE b();", "midway with COMMIT", id="commits midway"),
        pytest.param("CREATE TABLE a(); ROLLBACK;", "midway with ROLLBACK", id="rolls back"),
        pytest.param("BEGIN; CREATE TABLE a();", "leaves the transaction open", id="leaves it open"),
        pytest.param("BEGIN; CREATE TABLE a(); ROLLBACK;", "undoes its own work", id="undoes it all"),
        pytest.param("CREATE TABLE a(); /* never\nCREATE TABLE b();", "never ends", id="comments the rest out"),
        pytest.param("\\connect postgres\nCREATE TABLE stray(i int);", "psql command \\connect", id="connects elsewhere"),
        pytest.param("CREATE TABLE a();\n\\! touch pwned", "psql command \\!", id="runs a program"),
        pytest.param("CREATE TABLE a();\n\\i other.sql", "psql command \\i", id="reads another file"),
    ],
)
def test_nothing_is_lost_silently(project: Project, text: str, said: str) -> None:
    """A file that would end our transaction, or obeys psql, is refused before anything of any file runs."""
    found = failure(project, {"1_good.sql": "CREATE TABLE good();", "2_bad.sql": text})
    assert said in found.message
    assert f"{project.root}/core/2_bad.sql:" in found.message
    assert "nothing of the file was run" in found.message
    assert project.tables() == set()
    assert project.cluster.execute("SELECT 1 FROM pg_tables WHERE tablename = 'stray'") == []


def test_a_transaction_left_open_in_pieces_is_told(project: Project) -> None:
    """A marked file that begins a transaction and does not end it loses its work; that is an error, not a silence."""
    found = failure(project, {"1_a.sql": f"{sql.MARK}\nCREATE TABLE a(); BEGIN; CREATE TABLE b();"})
    assert "leaves a transaction open" in found.message
    assert project.tables() == {"a"}


def test_a_procedure_that_commits_is_told_about_the_mark(project: Project) -> None:
    """COMMIT inside a procedure is not for a transaction block, and runs under the mark."""
    files = {"1_p.sql": "CREATE PROCEDURE p() LANGUAGE plpgsql AS $$ BEGIN COMMIT; END $$;", "2_call.sql": "CALL p();"}
    found = failure(project, files)
    assert "SQLSTATE 2D000" in found.message
    assert sql.MARK in found.next
    project.files({**files, "2_call.sql": f"{sql.MARK}\nCALL p();"})
    assert project.apply() == ["core/2_call.sql"]


@pytest.mark.parametrize("mark", ["", f"{sql.MARK}\n"], ids=["normal", "marked"])
def test_a_failure_in_the_middle(project: Project, mark: str) -> None:
    """MIG-06: place, state and statement are named, later files do not run, and the mended file simply runs."""
    files = {"0002_a.sql": f"{mark}CREATE TABLE a(i int);\nSELECT 1/0;\nCREATE TABLE b(i int);", "0003_c.sql": "CREATE TABLE c(i int);"}
    found = failure(project, files)
    line = 3 if mark else 2
    assert found.message == f"stream 'core', {project.root}/core/0002_a.sql:{line}:1: division by zero (SQLSTATE 22012) in: SELECT 1/0"
    assert project.tables() == ({"a"} if mark else set())
    assert ("is kept" in found.next) == bool(mark)
    assert project.ledger() == []
    project.files({**files, "0002_a.sql": f"{mark}CREATE TABLE IF NOT EXISTS a(i int);"})
    assert project.apply() == ["core/0002_a.sql", "core/0003_c.sql"]


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        pytest.param("SELECT 1;\n\n  SELEC 2;", "3:3", "(SQLSTATE 42601) in: SELEC 2", id="syntax"),
        pytest.param(
            "SELECT 1;\r\nSELECT 'é',\r\n nothing;", "3:2", "(SQLSTATE 42703) in: SELECT 'é', nothing", id="CRLF and a wide character"
        ),
        pytest.param("\ufeffSELECT nothing;", "1:8", "(SQLSTATE 42703)", id="behind a byte order mark"),
        pytest.param(
            "SELECT 1;\nDO $$ BEGIN\n RAISE 'no; %', 1; END $$;",
            "2:1",
            "no; 1 (SQLSTATE P0001) [PL/pgSQL function inline_code_block line 2 at RAISE]",
            id="in a body",
        ),
        pytest.param(f"{sql.MARK}\nSELECT 1; SELECT nothing", "2:18", "in: SELECT nothing", id="in pieces"),
        pytest.param("BEGIN;\nSELECT nothing;\nCOMMIT", "2:8", "in: SELECT nothing", id="in its own transaction"),
        pytest.param("SELECT 'a;\n", "1:8", "(SQLSTATE 42601) in: SELECT 'a;", id="a quote that never ends"),
        pytest.param("CREATE TABLE x(p text); COPY x FROM stdin;\n1\t2\n\\.\n", "1:25", "(SQLSTATE 22P04)", id="COPY data"),
        pytest.param("CREATE USER x PASSWORD 'open-sesame'", "1:1", "in: CREATE USER x PASSWORD '***'", id="a password"),
    ],
)
def test_errors_name_their_place(project: Project, text: str, place: str, said: str) -> None:
    """Line and column are of the file, wherever the server counted from."""
    found = failure(project, {"1_x.sql": text})
    assert f"1_x.sql:{place}: " in found.message
    assert said in found.message


def test_an_error_at_the_end_is_told_as_one(project: Project) -> None:
    """A deferred constraint that fails in COMMIT has a file, if no line."""
    found = failure(project, {"1_x.sql": "CREATE TABLE a(i int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED); INSERT INTO a VALUES (1), (1);"})
    assert "1_x.sql, at its end: duplicate key value" in found.message
    assert "(SQLSTATE 23505)" in found.message
    assert project.tables() == set()


def test_odd_files_count(project: Project) -> None:
    """An empty file, a comment alone, a byte order mark, CRLF: all are applied and entered."""
    project.files(
        {
            "1_empty.sql": "",
            "2_comment.sql": "-- nothing yet",
            "3_bom.sql": "\ufeffCREATE TABLE a();\r\n",
            "4_blank.sql": f"\n{sql.MARK}\n;;",
        }
    )
    assert len(project.apply()) == 4
    assert project.ledger() == ["core/1_empty.sql", "core/2_comment.sql", "core/3_bom.sql", "core/4_blank.sql"]


def test_a_dump_loads(project: Project) -> None:
    """MIG-03: what pg_dump writes is a migration like another, and leaves the next file its search_path."""
    program = next((str(path) for path in (project.cluster.binaries / "pg_dump",) if path.exists()), shutil.which("pg_dump"))
    if program is None:
        pytest.skip("pg_dump is not installed: install PostgreSQL's client programs")
    other = project.create_database()
    project.cluster.execute(
        """CREATE TABLE kept(id int PRIMARY KEY, v text); INSERT INTO kept VALUES (1, E'a\\tb\\\\c;''$$ é'), (2, NULL);
           CREATE FUNCTION f() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT 1; SELECT 2; END;""",
        database=other,
        role="dev",
    )
    dump = subprocess.run([program, "--no-owner", project.dsn(name=other).text], capture_output=True, check=True).stdout
    project.files({"0001_dump.sql": b"\\restrict aKey\n" + dump + b"\\unrestrict aKey\n", "0002_later.sql": "CREATE TABLE later(i int);"})
    project.apply()
    assert project.rows("SELECT id, v FROM kept ORDER BY id") == [(1, "a\tb\\c;'$$ é"), (2, None)]
    assert project.tables() == {"kept", "later"}
    assert project.value("SELECT f()") == 2


def test_roles_outlive_the_database(project: Project) -> None:
    """MIG-04: an unguarded role works once; the second time the error says whose a role is. A guarded one works twice."""
    maintenance = Stream("core", "core", as_maintenance=True)
    project.files({"1_item.sql": "CREATE TABLE item();", "2_role.sql": "CREATE ROLE app_reader;\nGRANT SELECT ON item TO app_reader;"})
    project.apply(maintenance)
    project.name = project.create_database()
    found = failure(project, {"1_item.sql": "CREATE TABLE item();", "2_role.sql": "CREATE ROLE app_reader;"}, maintenance)
    assert "2_role.sql:1:1" in found.message
    assert "SQLSTATE 42710" in found.message
    assert "Roles belong to the cluster and survive" in found.next
    guarded = "DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'app_reader') THEN CREATE ROLE app_reader; END IF; END $$;"
    for _ in range(2):
        project.name = project.create_database()
        project.files({"1_item.sql": guarded})
        project.apply(maintenance)


def test_extensions_need_the_right(project: Project) -> None:
    """MIG-04: a trusted extension works for the ordinary role, another names the superuser and works as maintenance."""
    project.files({"1_trusted.sql": "CREATE EXTENSION IF NOT EXISTS pg_trgm;"})
    project.apply()
    found = failure(project, {"1_trusted.sql": "CREATE EXTENSION IF NOT EXISTS pg_trgm;", "2_fdw.sql": "CREATE EXTENSION file_fdw;"})
    assert "2_fdw.sql:1:1" in found.message
    assert "file_fdw" in found.message
    assert "superuser" in found.next
    project.files({"1_fdw.sql": "CREATE EXTENSION file_fdw; CREATE TABLE above();"}, stream="system")
    project.files({"1_trusted.sql": "CREATE EXTENSION IF NOT EXISTS pg_trgm;"})
    assert project.apply(Stream("system", "system", as_maintenance=True), Stream("core", "core")) == ["system/1_fdw.sql"]
    assert project.rows("SELECT tableowner FROM pg_tables WHERE tablename = 'above'") == [("su",)]


LITERALS = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="'\0"), max_size=10).map(lambda text: f"'{text}'"),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=10).map(
        lambda text: "E'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
    ),
    st.text(st.characters(codec="utf-8", exclude_characters="$\0"), max_size=10).map(lambda text: f"$q${text}$q$"),
    st.text(st.sampled_from("a;'\"$-/*"), max_size=6)
    .filter(lambda text: "*/" not in text and "/*" not in text)
    .map(lambda text: f"/*{text} /*;*/ */ 1"),
    st.text(st.sampled_from("a;'\"$-/*\\"), max_size=6).map(lambda text: f"1 --{text}\n"),
    st.sampled_from(["1", "(SELECT ';')", "'a'\n'b;'", "E'a'\n'\\';'", "U&'\\0041;'", "CASE WHEN true THEN 1 END", "1 *-- ;\n 2", "B'1'"]),
)


@hypothesis.given(st.lists(LITERALS, min_size=1, max_size=8))
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture], max_examples=300)
def test_the_server_counts_the_same_statements(session: Connection, literals: list[str]) -> None:
    """One string to the server, and our splitter: the same number of statements, and each piece gives the same value."""
    text = " ;".join(f"SELECT {literal} AS v" for literal in literals)
    ran = database.run_text(session, text)
    assert (len(literals), None) == (ran.completed, ran.error)
    pieces = sql.split(text)
    assert len(pieces) == len(literals)
    for literal, piece in zip(literals, pieces, strict=True):
        alone = session.execute(f"SELECT {literal} AS v".encode()).fetchone()
        assert session.execute(piece.text.encode()).fetchone() == alone
