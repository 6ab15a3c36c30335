"""Command streams: the command acts on the target and on nothing else, or the reset fails and says what happened."""

from __future__ import annotations

import pytest

from harness.errors import ResetFailed
from harness.settings import Stream
from harness.targets import Dsn
from tests.migrations.project import Project

APPLY = """
import os, psycopg, sys
with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
    for statement in sys.argv[1:]:
        connection.execute(statement)
"""


def tool(*statements: str) -> Stream:
    """Return a stream whose command runs statements in the database it is given."""
    return Stream("tool", command=("python", "apply.py", *statements))


@pytest.fixture
def application(project: Project) -> Dsn:
    """Return the application's database."""
    project.write("apply.py", APPLY)
    return project.dsn(name=project.create_database())


def failure(project: Project, *of: Stream, application: Dsn | None = None, environment: tuple[tuple[str, str], ...] = ()) -> ResetFailed:
    """Apply streams that must fail and return how."""
    with pytest.raises(ResetFailed) as caught:
        project.apply(*of, application=application, environment=environment)
    return caught.value


def test_a_command_changes_the_target(project: Project, application: Dsn) -> None:
    """What a command makes is in the target, its stream is among what was applied, and the ledger has it."""
    assert project.apply(tool("CREATE TABLE a(i int)"), application=application) == ["tool"]
    assert project.tables() == {"a"}
    assert project.ledger() == ["tool/python apply.py 'CREATE TABLE a(i int)'"]
    assert project.tables(application.name) == set()


def test_a_command_that_only_writes_rows_counts_as_well(project: Project, application: Dsn) -> None:
    """Seeding is a change; the streams before it are in place."""
    project.files({"1_a.sql": "CREATE TABLE a(i int);"})
    assert project.apply(Stream("core", "core"), tool("INSERT INTO a VALUES (1)"), application=application) == ["core/1_a.sql", "tool"]


def test_a_second_time_it_is_current(project: Project, application: Dsn) -> None:
    """A command that has nothing more to do is fine where it did its work before."""
    stream = tool("CREATE TABLE IF NOT EXISTS a(i int)")
    assert project.apply(stream, application=application) == ["tool"]
    assert project.apply(stream, application=application) == []


def test_a_database_that_lived_before_us_may_be_current(project: Project, application: Dsn) -> None:
    """A database that the tool itself had migrated, without a ledger of ours, is taken as it is."""
    project.cluster.execute("CREATE TABLE a(i int)", database=project.name)
    assert project.apply(tool("CREATE TABLE IF NOT EXISTS a(i int)"), application=application) == []
    assert project.apply(tool("CREATE TABLE IF NOT EXISTS a(i int)"), application=application) == []


def test_success_without_a_change_is_a_failure(project: Project, application: Dsn) -> None:
    """A command that says success and did nothing went elsewhere."""
    found = failure(project, tool("SELECT 1"), application=application)
    assert f"said success, but left the database {project.name!r} unchanged" in found.message
    assert "DATABASE_URL" in found.next


def test_work_taken_back_is_no_change(project: Project, application: Dsn) -> None:
    """What was rolled back is not there."""
    found = failure(project, tool("CREATE TABLE a(i int)", "ROLLBACK"), application=application)
    assert "unchanged" in found.message


@pytest.mark.parametrize("also_the_target", [True, False])
def test_a_command_that_reaches_the_application_is_a_failure(project: Project, application: Dsn, also_the_target: bool) -> None:  # noqa: FBT001  # a table's column
    """MIG-07: whatever it did to the target, the application's database must stay as it is."""
    project.write("astray.py", APPLY.replace('os.environ["DATABASE_URL"]', repr(application.text)))
    both = "python apply.py 'CREATE TABLE a(i int)' && python astray.py 'CREATE TABLE a(i int)'"
    command = ("sh", "-c", both if also_the_target else "python astray.py 'CREATE TABLE a(i int)'")
    found = failure(project, Stream("tool", command=command), application=application)
    assert f"changed the application's database {application.name!r}" in found.message
    assert ("left the test database unchanged" in found.message) != also_the_target


def test_an_application_out_of_reach_is_no_fault(project: Project, application: Dsn) -> None:
    """The application's server may be down."""
    down = application._replace(port=1, text=application.text.replace(f":{application.port}/", ":1/"))
    assert project.apply(tool("CREATE TABLE a(i int)"), application=down) == ["tool"]


def test_a_failing_command_shows_what_it_said(project: Project, application: Dsn) -> None:
    """Exit code and output are in the message, passwords are not."""
    project.write("loud.py", "import os, sys\nprint('to stdout')\nprint(os.environ['DATABASE_URL'], file=sys.stderr)\nsys.exit(3)\n")
    found = failure(project, Stream("tool", command=("python", "loud.py")), application=application)
    assert "stream 'tool': 'python loud.py' exited 3, and said: to stdout | postgresql://dev" in found.message
    assert "secret" not in found.message


def test_a_command_that_cannot_start_is_told(project: Project) -> None:
    """A missing tool is named."""
    found = failure(project, Stream("tool", command=("no-such-tool", "up")))
    assert "'no-such-tool up' cannot be started: No such file or directory" in found.message


def test_a_slow_command_is_ended(project: Project) -> None:
    """The stream's time limit holds, and the output so far is shown."""
    project.write("slow.py", "import time\nprint('starting', flush=True)\ntime.sleep(60)\n")
    found = failure(project, Stream("tool", command=("python", "slow.py"), timeout=1.5))
    assert "took longer than 1.5 s, and said: starting" in found.message


def test_a_command_runs_in_the_root_with_the_settings_environment(project: Project, application: Dsn) -> None:
    """Working folder, [environment] and its placeholders."""
    project.write("where.sh", 'pwd > where; echo "$NAME $MC_DB_DSN" >> where; python apply.py "CREATE TABLE a()"')
    project.apply(Stream("tool", command=("sh", "where.sh")), application=application, environment=(("NAME", "{name}"),))
    where, variables = (project.root / "where").read_text().splitlines()
    assert where == str(project.root)
    assert variables == f"{project.name} postgresql://application-database-is-hidden-from-tests.invalid/hidden"


def test_a_command_may_need_the_maintenance_role(project: Project) -> None:
    """`as = "maintenance"` gives the command the superuser's DSN of the same database."""
    project.write("apply.py", APPLY)
    project.apply(tool("CREATE EXTENSION file_fdw")._replace(as_maintenance=True))
    assert project.value("SELECT count(*) FROM pg_extension WHERE extname = 'file_fdw'") == 1


def test_a_failed_command_stops_what_follows(project: Project, application: Dsn) -> None:
    """Streams after it do not run."""
    project.files({"1_a.sql": "CREATE TABLE a(i int);"})
    failure(project, tool("SELECT 1/0"), Stream("core", "core"), application=application)
    assert project.tables() == set()
