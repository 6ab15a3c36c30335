"""`harness.migrate` and its ledger: any database brought up to date, nothing twice, nothing out of order."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import pytest

import harness
from harness import database, ledger, sql, streams
from harness.errors import HarnessError, Refusal, ResetFailed, UsageError
from harness.settings import Stream
from tests.migrations.project import Project


def test_migrate_applies_what_is_pending_and_nothing_twice(project: Project) -> None:
    """The first call applies all, the next nothing, and a new file is applied alone."""
    files = {"1_a.sql": "CREATE TABLE a();", "2_b.sql": "CREATE TABLE b();"}
    project.files(files)
    assert project.migrate() == ["core/1_a.sql", "core/2_b.sql"]
    assert project.migrate() == []
    project.files({**files, "3_c.sql": "CREATE TABLE c();"})
    assert project.migrate() == ["core/3_c.sql"]
    assert project.tables() == {"a", "b", "c"}


def test_the_ledger_says_what_was_applied(project: Project) -> None:
    """Stream, position, file, hash and time, one row per file; the key is stream and file."""
    project.files({"1_a.sql": "SELECT 1;"})
    project.migrate()
    digest = "17db4fd369edb9244b9f91d9aeed145c3d04ad8ba6e95d06247f07a63527d11a"
    query = "SELECT stream, position, file, sha256, now() - applied_at < interval '1 minute' FROM pgharness.applied"
    assert project.rows(query) == [("core", 1, "1_a.sql", digest, True)]
    key = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'pgharness.applied'::regclass AND contype = 'p'"
    assert project.rows(key) == [("PRIMARY KEY (stream, file)",)]


def test_after_a_reset_nothing_is_pending(project: Project) -> None:
    """What a reset applied, `harness.migrate` finds applied."""
    project.files({"1_a.sql": "CREATE TABLE a();"})
    project.apply()
    assert project.migrate() == []


@pytest.mark.parametrize(
    ("files", "said"),
    [
        pytest.param({"2_b.sql": "CREATE TABLE b(); -- why"}, "core/2_b.sql was edited after it was applied", id="edited"),
        pytest.param({"2_b.sql": None}, "2_b.sql was applied to this database, but the file is gone", id="gone"),
        pytest.param({"2_b.sql": None, "2_x.sql": "SELECT 1"}, "2_b.sql was applied to this database, but the file is gone", id="renamed"),
        pytest.param({"1_x.sql": "CREATE TABLE x();"}, "core/1_x.sql is new, but 2_b.sql behind it was applied", id="ordered before"),
    ],
)
def test_a_database_that_the_files_would_not_make_is_refused(project: Project, files: dict[str, str | None], said: str) -> None:
    """Nothing is applied on top of what other files made: the refusal names the file."""
    before: dict[str, str | None] = {"0_a.sql": "CREATE TABLE a();", "2_b.sql": "CREATE TABLE b();"}
    project.files({name: text for name, text in before.items() if text is not None})
    project.migrate()
    project.files({name: text for name, text in {**before, **files, "3_c.sql": "CREATE TABLE c();"}.items() if text is not None})
    with pytest.raises(Refusal) as caught:
        project.migrate()
    assert said in caught.value.message
    assert project.tables() == {"a", "b"}


def test_streams_do_not_disturb_each_other(project: Project) -> None:
    """Who migrates some of the streams is not asked about the others."""
    project.files({"1_a.sql": "CREATE TABLE a();"})
    project.files({"1_a.sql": "CREATE TABLE other();"}, stream="more")
    assert project.apply(Stream("core", "core"), Stream("more", "more")) == ["core/1_a.sql", "more/1_a.sql"]
    assert project.migrate() == []


def test_streams_may_be_given_in_three_ways(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """As names and folders, relative to `root` or to the working folder, or as settings; harness.toml is not asked for."""
    project.files({"1_a.sql": "CREATE TABLE a();"})
    dsn = project.dsn().text
    assert harness.migrate(dsn, streams={"one": "core"}, root=project.root) == ["one/1_a.sql"]
    monkeypatch.chdir(project.root)
    with pytest.raises(ResetFailed, match="already exists"):
        harness.migrate(dsn, streams={"two": "core"})
    assert harness.migrate(dsn, streams=[Stream("one", str(project.root / "core"))]) == []


@pytest.mark.parametrize("way", ["root", "HARNESS_ROOT", "nearest"])
def test_harness_toml_is_found(project: Project, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """The streams are those of `root`, else of $HARNESS_ROOT, else of the nearest harness.toml."""
    project.files({"1_a.sql": "CREATE TABLE a();"})
    project.write("harness.toml", '[[migrations]]\nstream = "core"\ndirectory = "core"\n')
    project.write("deep/down/x", "")
    if way == "HARNESS_ROOT":
        monkeypatch.setenv("HARNESS_ROOT", str(project.root))
    if way == "nearest":
        monkeypatch.chdir(project.root / "deep/down")
    assert harness.migrate(project.dsn().text, root=project.root if way == "root" else None) == ["core/1_a.sql"]


def test_a_broken_dsn_shows_no_password(project: Project) -> None:
    """The refusal says whose DSN it is and no part of the secret."""
    with pytest.raises(UsageError) as caught:
        harness.migrate("postgresql://dev:pa@ss@h/x", streams={"core": project.root})
    assert "the DSN given to harness.migrate" in caught.value.message
    assert "pa@ss" not in str(caught.value)


def test_skipped_files_are_logged(project: Project, caplog: pytest.LogCaptureFixture) -> None:
    """An application sees the notices in its log."""
    project.files({"1_a.sql": "", "2_b.sql.orig": ""})
    with caplog.at_level(logging.WARNING, logger="harness"):
        project.migrate()
    assert "2_b.sql.orig is skipped" in caplog.text


def test_several_migrators_at_once_apply_everything_once(project: Project) -> None:
    """Four at once, with concurrent index builds: no deadlock, no collision, each file once."""
    project.files(
        {"1_t.sql": "CREATE TABLE t(i int);"} | {f"{n}_i.sql": f"{sql.MARK}\nCREATE INDEX CONCURRENTLY i{n} ON t(i);" for n in range(2, 6)}
    )
    results: list[list[str]] = []
    threads = [threading.Thread(target=lambda: results.append(project.migrate())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(map(len, results)) == [0, 0, 0, 5]


def test_a_migrator_waits_for_another_and_not_for_ever(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is polled; when its holder does not leave, that is told, and nothing was done."""
    project.files({"1_a.sql": "CREATE TABLE a();"})
    with project.cluster.connect("dev", project.name) as holder:
        holder.execute("SELECT pg_advisory_lock(%s, %s)", streams._LOCK)
        monkeypatch.setattr(streams, "_LOCK_SECONDS", 0.2)
        with pytest.raises(ResetFailed, match="is being migrated by another session"):
            project.migrate()
        assert project.tables() == set()
        monkeypatch.setattr(streams, "_LOCK_SECONDS", 30)
        threading.Timer(0.3, holder.close).start()
        started = time.monotonic()
        assert project.migrate() == ["core/1_a.sql"]
        assert time.monotonic() - started > 0.2


def test_a_file_cannot_give_the_lock_away(project: Project) -> None:
    """A file that unlocks everything unlocks its own session only."""
    project.files({"1_a.sql": "SELECT pg_advisory_unlock_all(); SELECT pg_sleep(0.5);", "2_b.sql": "CREATE TABLE b();"})
    results: list[list[str]] = []
    threads = [threading.Thread(target=lambda: results.append(project.migrate())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(map(len, results)) == [0, 2]


def test_a_lost_session_is_told_with_its_file(project: Project) -> None:
    """A server that ends our session midway leaves an error of ours, no row in the ledger, and a next time that works."""
    files = {"1_a.sql": "CREATE TABLE a();", "2_b.sql": "CREATE TABLE b(); SELECT pg_terminate_backend(pg_backend_pid());"}
    project.files(files)
    with pytest.raises(ResetFailed, match=r"2_b\.sql"):
        project.migrate()
    project.files({**files, "2_b.sql": "CREATE TABLE b();"})
    assert project.migrate() == ["core/2_b.sql"]


def test_an_index_left_invalid_is_not_passed_over(project: Project) -> None:
    """After a failed concurrent build `IF NOT EXISTS` would keep the invalid index for ever: the file is not done before it is dropped."""
    files = {"1_t.sql": "CREATE TABLE t(i int); INSERT INTO t VALUES (1), (1);"}
    project.files({**files, "2_i.sql": f"{sql.MARK}\nCREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS one ON t(i);"})
    with pytest.raises(ResetFailed) as caught:
        project.migrate()
    assert "SQLSTATE 23505" in caught.value.message
    assert "Drop the invalid index" in caught.value.next
    project.cluster.execute("DELETE FROM t", database=project.name)
    with pytest.raises(ResetFailed, match=r"2_i\.sql leaves the index public\.one invalid"):
        project.migrate()
    project.cluster.execute("DROP INDEX one", database=project.name)
    assert project.migrate() == ["core/2_i.sql"]


def test_a_role_that_may_not_make_the_ledger_is_told(project: Project) -> None:
    """An ordinary role in another's database cannot keep a ledger."""
    name = project.create_database()
    project.cluster.execute(f"ALTER DATABASE {name} OWNER TO su; ALTER SCHEMA public OWNER TO su", database=name)
    project.files({"1_a.sql": "SELECT 1"})
    with pytest.raises(ResetFailed, match=r"ledger.*SQLSTATE 42501"):
        project.migrate(name)


def test_a_ledger_that_a_file_empties_is_told(project: Project) -> None:
    """Nothing is pending at the end, and that is asked, not assumed."""
    project.files({"1_a.sql": "CREATE TABLE a();", "2_b.sql": "DELETE FROM pgharness.applied;"})
    with pytest.raises(ResetFailed, match=r"1_a\.sql is still pending"):
        project.apply()


def test_the_roles_own_limits_do_not_stop_migrations(project: Project) -> None:
    """A role with time-outs and a read-only default migrates all the same, in every file."""
    project.cluster.execute(
        f"ALTER ROLE dev IN DATABASE {project.name} SET default_transaction_read_only = on; "
        f"ALTER ROLE dev IN DATABASE {project.name} SET statement_timeout = 50"
    )
    project.files({f"{n}_t.sql": f"CREATE TABLE t{n}(); SELECT pg_sleep(0.1)" for n in (1, 2)})
    assert len(project.migrate()) == 2


def test_pending_can_be_asked(project: Project) -> None:
    """The plan and a ledger say what is to be done, and nothing is done by asking."""
    project.files({"1_a.sql": "CREATE TABLE a();"})
    plan = streams.plan(project.settings())
    with database.connect(project.dsn(), purpose="test") as connection:
        assert [file.name for file in streams.pending(plan, ledger.read(connection))] == ["1_a.sql"]
        project.apply()
        assert streams.pending(plan, ledger.read(connection)) == []


def test_missing_extensions_are_told_before_anything_is_done(project: Project) -> None:
    """The server is asked what it has; the message says which file asks, which package has it."""
    project.files({"1_a.sql": "CREATE EXTENSION citext;", "2_b.sql": "\nCREATE EXTENSION no_such_thing;"})
    plan = streams.plan(project.settings())
    with database.connect(project.dsn(), purpose="test") as connection, pytest.raises(HarnessError) as caught:
        streams.check_extensions(plan, connection)
    assert f"{project.root}/core/2_b.sql:2 asks for the extension 'no_such_thing'" in caught.value.message
    assert "no-such-thing" in caught.value.next


def test_paths_may_be_odd(project: Project, tmp_path: Path) -> None:
    """Quotes, spaces and letters beyond ASCII in stream and file names are only names."""
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    (folder / "1_it's \\ ü.sql").write_text("CREATE TABLE a();")
    assert harness.migrate(project.dsn().text, streams={"o'dd \\ one": folder}) == ["o'dd \\ one/1_it's \\ ü.sql"]
    assert harness.migrate(project.dsn().text, streams={"o'dd \\ one": folder}) == []


def test_the_options_of_a_dsn_count(project: Project) -> None:
    """An application that keeps its tables elsewhere by its DSN's search_path finds them there after harness.migrate."""
    project.files({"0001_it.sql": "CREATE SCHEMA IF NOT EXISTS elsewhere; CREATE TABLE t(i int)"})
    dsn = project.cluster.dsn("dev", project.name, options="-c search_path=elsewhere")
    assert harness.migrate(dsn, streams={"core": project.root / "core"}) == ["core/0001_it.sql"]
    assert project.cluster.value("SELECT schemaname FROM pg_tables WHERE tablename = 't'", database=project.name) == "elsewhere"
