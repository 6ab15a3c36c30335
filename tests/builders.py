"""What the tests build: scratch clusters, whole adopting repositories, and the sentinel of every field case."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from tests.scratch import SUPERUSER, NoServer, ScratchCluster, identifier, literal, sweep

__all__ = [
    "SUPERUSER",
    "Completed",
    "NoServer",
    "SampleRepository",
    "ScratchCluster",
    "Sentinel",
    "assert_fresh",
    "identifier",
    "literal",
    "sweep",
    "untouched",
]

HARNESS_ROOT = Path(__file__).resolve().parent.parent
BASE_MIGRATION = "CREATE TABLE item(id int PRIMARY KEY);\n"
TASKS = "from harness.tasks import *\n"
SETTINGS = """\
[databases]
application = "shop"
test = "shop_test"
e2e = "shop_e2e"

[[migrations]]
stream = "core"
directory = "migrations/core"

[packages]
test = ["tests/orders"]
e2e = ["tests/checkout"]
"""
TEST_OF_A_PACKAGE = '''\
def test_database(test_connection):
    """The item table is there and empty."""
    assert test_connection.execute("SELECT count(*) FROM item").fetchone() == (0,)
'''
E2E_TEST_OF_A_PACKAGE = TEST_OF_A_PACKAGE.replace("test_connection", "e2e_connection")
VARIABLES = {"MC_DB_DSN": "shop", "TEST_DATABASE_URL": "shop_test", "E2E_DATABASE_URL": "shop_e2e", "MAINTENANCE_DATABASE_URL": "postgres"}


class Completed(NamedTuple):
    """A command that ended; a negative `returncode` is the signal that ended it."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """Both streams, for searching."""
        return self.stdout + self.stderr

    def expect(self, code: int, *phrases: str) -> Completed:
        """Assert the exit code and that each phrase stands in the output; return itself."""
        shown = f"{' '.join(self.argv)} exited {self.returncode}, expected {code}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"
        assert self.returncode == code, shown
        for phrase in phrases:
            assert phrase in self.output, f"{phrase!r} is missing: {shown}"
        if code in (2, 3, 4, 5):
            assert "Traceback (most recent call last)" not in self.stderr, shown
        return self


RUN_SETTINGS: list[str] = []
"""Lines for the [run] table of every harness.toml that is written: the same tests, another mode."""


def in_run_table(text: str, line: str) -> str:
    """Return the text of a harness.toml with a line in its [run] table."""
    head, found, tail = text.partition("[run]\n")
    return f"{head}{found}{line}\n{tail}" if found else f"{text}\n[run]\n{line}\n"


class SampleRepository:
    """A whole adopting repository in a folder of its own: settings, tasks, a migration, two packages, test/.env."""

    def __init__(self, root: Path, cluster: ScratchCluster | None = None, *, settings: str = SETTINGS, git: bool = False) -> None:
        self.root, self.cluster = root, cluster
        root.mkdir(parents=True, exist_ok=True)
        self.state = root.parent / f"{root.name}.state"
        self.state.mkdir(exist_ok=True)
        self.settings(settings)
        self.write("tasks.py", TASKS)
        self.migration("0001_base.sql", BASE_MIGRATION)
        self.write("tests/orders/test_orders.py", TEST_OF_A_PACKAGE)
        self.write("tests/checkout/test_checkout.py", E2E_TEST_OF_A_PACKAGE)
        if git:
            self.git("init", "-q", "-b", "main")
        if cluster is not None:
            self.set_up_databases()
            self.env_file()

    def set_up_databases(self) -> None:
        """Make the cluster hold role `dev` and the application database alone: a reset then creates and stamps the others."""
        assert self.cluster is not None
        self.cluster.clear()
        self.cluster.create_role("dev", "LOGIN CREATEDB")
        self.cluster.create_database("shop", "dev")

    def settings(self, text: str) -> None:
        """Write harness.toml, with what `--run-settings` asks for where the test says nothing of it."""
        for line in RUN_SETTINGS:
            text = text if re.search(rf"^{line.partition(' ')[0]} *=", text, re.MULTILINE) else in_run_table(text, line)
        self.write("harness.toml", text)

    def write(self, path: str, text: str | bytes) -> Path:
        """Write a file, its folders included."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode() if isinstance(text, str) else text)
        return target

    def migration(self, name: str, sql: str | bytes, *, stream: str = "core") -> Path:
        """Write a migration file."""
        return self.write(f"migrations/{stream}/{name}", sql)

    def package(self, path: str, source: str, *, name: str = "test_it.py") -> Path:
        """Write a package's test module; harness.toml decides whether it runs."""
        return self.write(f"{path}/{name}", source)

    def dsn(self, variable: str, role: str = "dev") -> str:
        """Return what test/.env says by default."""
        assert self.cluster is not None
        return self.cluster.dsn(role, VARIABLES[variable])

    def env_file(self, changes: Mapping[str, str | None] | None = None, *, role: str = "dev", extra: str = "") -> Path:
        """Write test/.env for the cluster; a change replaces a variable's value, None leaves the variable out."""
        values: dict[str, str | None] = {variable: self.dsn(variable, role) for variable in VARIABLES}
        values |= {"HARNESS_WORKTREE": quote(str(self.root.resolve()), safe="/"), **(changes or {})}
        path = self.write("test/.env", "".join(f"{key}={value}\n" for key, value in values.items() if value is not None) + extra)
        path.chmod(0o600)
        return path

    def environment(self, changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
        """Return an allow-listed environment: no DSN, no HARNESS_* but the state folder, no PG*, no CI, no activated venv."""
        home = self.state / "home"
        home.mkdir(exist_ok=True)
        given: dict[str, str | None] = {key: os.environ.get(key) for key in ("PATH", "LD_LIBRARY_PATH", "TMPDIR", "SYSTEMROOT")}
        given |= {"HOME": str(home), "LANG": "C.UTF-8", "PYTHONPATH": str(HARNESS_ROOT), "HARNESS_STATE_DIR": str(self.state)}
        return {key: value for key, value in {**given, **(changes or {})}.items() if value is not None}

    def argv(self, *arguments: str, command: str = "inv") -> list[str]:
        """Return the real command beside this interpreter."""
        program = Path(sys.executable).parent / command
        if command == "harness" and not program.exists():
            return [sys.executable, "-c", "import sys; from harness.tasks import main; sys.argv[0] = 'harness'; main()", *arguments]
        return [str(program), *arguments]

    def start(
        self, *arguments: str, command: str = "inv", env: Mapping[str, str | None] | None = None, cwd: Path | None = None, **popen: Any
    ) -> subprocess.Popen[str]:
        """Start a command in a process group of its own; the caller waits for it. Output is captured unless told otherwise."""
        options: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "start_new_session": True,
        }
        return subprocess.Popen(
            self.argv(*arguments, command=command),
            cwd=cwd or self.root,
            env=self.environment(env),
            text=True,
            errors="replace",
            **{**options, **popen},
        )

    def run(  # each has a default, and a test names the one it is about
        self,
        *arguments: str,
        command: str = "inv",
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        timeout: float = 60,
        input: str | None = None,  # noqa: A002  # subprocess's own name
    ) -> Completed:
        """Run `inv` (or `harness`) with these arguments to its end; over `timeout` the whole group is killed and the test fails."""
        popen: dict[str, Any] = {} if input is None else {"stdin": subprocess.PIPE}
        with self.start(*arguments, command=command, env=env, cwd=cwd, **popen) as process:
            try:
                stdout, stderr = process.communicate(input, timeout)
            except BaseException as error:
                kill_group(process)
                stdout, stderr = process.communicate()
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                raise AssertionError(f"{arguments} took over {timeout} s\n--- stdout\n{stdout}\n--- stderr\n{stderr}") from error
        return Completed((command, *arguments), process.returncode, stdout, stderr)

    def git(self, *arguments: str) -> str:
        """Run git here, deaf to the machine's own configuration."""
        env = {**self.environment(), "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
        program = shutil.which("git")
        assert program is not None, "git is not installed"
        who = ("-c", "user.name=dev", "-c", "user.email=dev@example.invalid", "-c", "commit.gpgsign=false")
        return subprocess.run(
            [program, *who, *arguments], cwd=self.root, env=env, capture_output=True, text=True, check=True, timeout=60
        ).stdout


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kill a process and its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


_OBJECTS = """
SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname <> 'information_schema' AND n.nspname !~ '^pg_' ORDER BY 1
"""
_CLUSTER_STATE = """
SELECT (SELECT array_agg(rolname::text ORDER BY rolname) FROM pg_roles),
       (SELECT array_agg(s::text ORDER BY s::text) FROM pg_db_role_setting s
        WHERE setdatabase IN (SELECT oid FROM pg_database WHERE datname IN ({names})))
"""


class Sentinel:
    """The witness of every field case: a row and an idle session in the application's database, there before and after.

    After the body: same oid, row and session alive, no new table, role or setting in the application's database,
    `postgres` and `template1`. `roles` names roles that the body may create.
    """

    def __init__(self, cluster: ScratchCluster, database: str = "shop", owner: str = "dev", *, roles: frozenset[str] = frozenset()) -> None:
        self.cluster, self.database, self.owner, self.may_create = cluster, database, owner, roles
        self._session: Any = None
        self._before: tuple[Any, ...] = ()
        self.pid = 0

    def __enter__(self) -> Sentinel:  # noqa: PYI034  # Self came with Python 3.11
        self.cluster.execute("CREATE TABLE keep(v int); INSERT INTO keep VALUES (42)", database=self.database, role=self.owner)
        self._session = self.cluster.connect(self.owner, self.database, application_name="app-sentinel")
        self.pid = self._session.info.backend_pid
        self._before = self._state()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.check()
        finally:
            self._session.close()

    def check(self) -> None:
        """Assert that nothing happened to the application's database."""
        assert self._state() == self._before
        assert self._session.execute("SELECT v FROM keep").fetchall() == [(42,)], "the sentinel's own session is dead or its row gone"

    def _state(self) -> tuple[Any, ...]:
        names = (self.database, "postgres", "template1")
        roles, settings = self.cluster.execute(_CLUSTER_STATE.format(names=", ".join(map(literal, names))))[0]
        objects = [self.cluster.execute(_OBJECTS, database=name) for name in names]
        return (self.cluster.oid(self.database), set(roles) - self.may_create, settings, objects)


def assert_fresh(
    cluster: ScratchCluster,
    name: str,
    *,
    before: int | None = None,
    owner: str = "dev",
    tables: frozenset[str] | set[str] = frozenset({"public.item"}),
) -> None:
    """Assert FRESH of cases.md: a new oid, open, owned by the DSN's role, UTF8, with the migrations' tables and no other."""
    rows = cluster.execute(
        "SELECT oid::int8, pg_get_userbyid(datdba), datallowconn, datconnlimit, pg_encoding_to_char(encoding) FROM pg_database "
        f"WHERE datname = {literal(name)}"
    )
    assert len(rows) == 1, f"there is no database {name!r}, only {cluster.databases()}"
    oid, *rest = rows[0]
    assert oid != before, f"{name!r} is still the old database"
    assert rest == [owner, True, -1, "UTF8"]
    found = cluster.execute(
        "SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname !~ '^(pg_|information_schema)'", database=name
    )
    assert {table for (table,) in found if not table.startswith("pgharness.")} == set(tables)


@contextlib.contextmanager
def untouched(cluster: ScratchCluster, *names: str) -> Iterator[None]:
    """Assert UNTOUCHED of cases.md around a body: same oids, open as before, and no session of them terminated."""

    def state() -> dict[str, Any]:
        listed = ", ".join(map(literal, names))
        rows = cluster.execute(
            f"SELECT datname, oid::int8, datallowconn, datconnlimit FROM pg_database WHERE datname IN ({listed}) ORDER BY 1"
        )
        return {str(row[0]): row[1:] for row in rows}

    def sessions() -> set[int]:
        listed = ", ".join(map(literal, names))
        rows = cluster.execute(f"SELECT pid FROM pg_stat_activity WHERE datname IN ({listed}) AND backend_type = 'client backend'")
        return {int(pid) for (pid,) in rows}

    before, alive = state(), sessions()
    yield
    assert state() == before
    assert alive <= sessions(), "a session was ended"
