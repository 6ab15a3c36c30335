"""harness.toml, the only settings file, as frozen values; and the process's environment, read here only."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import UsageError
from harness.tables import (
    Table,
    a_database_name,
    a_flag,
    a_list,
    a_name,
    a_setting,
    a_text,
    a_variable,
    an_argv,
    major,
    one_of,
    port_range,
    seconds,
    texts,
)
from harness.targets import check_name

FILE = "harness.toml"
ENV_FILE = "test/.env"
BOOTSTRAP = "test/bootstrap-stack.sh"
ROLES = ("application", "test", "e2e", "maintenance")
SERVERS = ("auto", "system", "embedded", "external")


class Database(NamedTuple):
    """A role's database: its name for the bootstrap to write, and the variable that holds its DSN at run time."""

    role: str
    name: str
    variable: str


class Stream(NamedTuple):
    """One migration stream: a folder of SQL files, or a command of another tool."""

    name: str
    directory: str = ""
    command: tuple[str, ...] = ()
    as_maintenance: bool = False
    variable: str = "DATABASE_URL"
    scheme: str = "postgresql"
    inputs: tuple[str, ...] | None = None
    timeout: float = 300.0


class Package(NamedTuple):
    """One package of a run: a folder for pytest, or a command; `timeout` in seconds, None without one."""

    name: str
    role: str
    path: str
    command: tuple[str, ...] = ()
    timeout: float | None = None
    junit: str = ""
    allow_empty: bool = False
    allow_residue: bool = False


class Run(NamedTuple):
    """How packages run; `grace` is the seconds between TERM and KILL."""

    fork: bool = True
    residue: str = "warn"
    strict: str = "ci"
    grace: float = 5.0


class Stack(NamedTuple):
    """How this worktree's own cluster is made."""

    server: str = "auto"
    major: int | None = None
    ports: tuple[int, int] = (17000, 17999)
    durable: bool = False
    directory: str = "test/.stack"
    createdb: bool = False
    settings: tuple[tuple[str, str], ...] = ()


class Settings(NamedTuple):
    """All of harness.toml; `root` is the real path of its folder, and so the worktree's identity."""

    root: Path
    databases: tuple[Database, ...]
    streams: tuple[Stream, ...]
    packages: tuple[Package, ...]
    environment: tuple[tuple[str, str], ...]
    run: Run
    stack: Stack

    def database(self, role: str) -> Database:
        """Return the database of `role`; UsageError when harness.toml has none."""
        for database in self.databases:
            if database.role == role:
                return database
        raise UsageError(f"{FILE} has no {role} database", next=f'Add `{role} = "NAME"` to its [databases].')

    @property
    def test_roles(self) -> tuple[str, ...]:
        """The roles whose databases may be reset, in order."""
        return tuple(database.role for database in self.databases if database.role in ("test", "e2e"))


DEFAULT_DATABASES = (
    Database("application", "app", "MC_DB_DSN"),
    Database("test", "app_test", "TEST_DATABASE_URL"),
    Database("e2e", "app_e2e", "E2E_DATABASE_URL"),
    Database("maintenance", "postgres", "MAINTENANCE_DATABASE_URL"),
)


def environment() -> dict[str, str]:
    """Return a copy of the process's environment."""
    return dict(os.environ)


def is_ci(shell: Mapping[str, str]) -> bool:
    """Say whether a CI system runs us: templates are bypassed there, and skips for want of a database fail the run."""
    return shell.get("CI", "").lower() not in ("", "0", "false", "no")


def forget_libpq_environment() -> None:
    """Remove every PG* variable from this process: libpq fills a DSN's gaps with them, and PGHOSTADDR beats its host."""
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]


def find_root(start: Path | None = None) -> Path:
    """Return the nearest folder with a harness.toml, from `start` (default: here) up to the worktree's top.

    Raises UsageError when there is none: a settings file above the worktree belongs to another repository.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / FILE).exists():
            return folder
        if (folder / ".git").exists():
            break
    raise UsageError(
        f"there is no {FILE} in {str(here)!r} or above it within its worktree", next="Run `harness init` in the repository's top folder."
    )


def load(root: Path) -> Settings:
    """Return the settings in `root`'s harness.toml.

    Raises UsageError naming file, table and key for a broken file, an unknown key (with a did-you-mean) or a value of
    the wrong form.
    """
    path = root / FILE
    return _settings(root.resolve(), Table(str(path), "", toml(path)))


def toml(path: Path) -> dict[str, Any]:
    """Return what a TOML file says; UsageError for one that cannot be read or is broken."""
    import tomli

    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 (byte {error.start})", next="Save it as UTF-8.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", next="Make it a readable file.") from None
    try:
        return tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}", next="Mend that line.") from None


def _settings(root: Path, top: Table) -> Settings:
    databases = _databases(top.table("databases"))
    streams = tuple(_stream(table) for table in top.tables("migrations"))
    _no_doubles(top, "[[migrations]] stream", [stream.name for stream in streams])
    packages = _packages(top.table("packages"))
    _no_doubles(top, "[packages] name", [package.name for package in packages])
    if any(package.role == "e2e" for package in packages) and not any(database.role == "e2e" for database in databases):
        top.fail("has e2e packages but no e2e database", 'Add `e2e = "NAME"` to [databases].')
    table = top.table("environment")
    variables = tuple((_variable_name(table, key), table.take(key, a_text, "text", "")) for key in list(table.left))
    run, stack = _run(top.table("run")), _stack(top.table("stack"))
    top.finish()
    return Settings(root, databases, streams, packages, variables, run, stack)


def _variable_name(table: Table, key: str) -> str:
    try:
        return a_variable(key)
    except ValueError:
        table.fail(f"has the key {key!r}", "Name an environment variable: letters, digits and underscores.")


def _databases(table: Table) -> tuple[Database, ...]:
    written = set(table.left)
    found = []
    for default in DEFAULT_DATABASES:
        read = partial(_database, table, default)
        database = table.take(default.role, read, "a name, or { name = …, variable = … }", default)
        if default.role != "e2e" or "e2e" in written or not written:
            check_name(database.name, f"{table.file}: [databases] {default.role}")
            found.append(database)
    table.finish()
    for part in ("name", "variable"):
        _no_doubles(table, f"[databases] {part}", [getattr(database, part) for database in found])
    return tuple(found)


def _database(table: Table, default: Database, value: object) -> Database:
    if isinstance(value, str):
        return default._replace(name=a_database_name(value))
    inner = Table(table.file, f"[databases.{default.role}]", value)
    name = inner.take("name", a_database_name, "a database name", default.name)
    variable = inner.take("variable", a_variable, "the name of an environment variable", default.variable)
    inner.finish()
    return Database(default.role, name, variable)


def _stream(table: Table) -> Stream:
    default = Stream("")
    stream = Stream(
        name=table.take("stream", a_name, "a name", ""),
        directory=table.take("directory", a_name, "a folder", default.directory),
        command=table.take("command", an_argv, "a list of arguments", default.command),
        as_maintenance=table.take("as", one_of("maintenance"), "'maintenance'", "") == "maintenance",
        variable=table.take("variable", a_variable, "the name of an environment variable", default.variable),
        scheme=table.take("url", a_name, "a URL scheme such as 'postgresql+psycopg'", default.scheme),
        inputs=table.take("inputs", texts, "a list of file patterns", default.inputs),
        timeout=table.take("timeout", seconds, "seconds above 0", default.timeout),
    )
    table.finish()
    if not stream.name:
        table.fail("has no stream", 'Add `stream = "NAME"`.')
    if bool(stream.directory) == bool(stream.command):
        table.fail("needs either directory or command", "Give one of them.")
    return stream


def _packages(table: Table) -> tuple[Package, ...]:
    found = []
    for role in ("test", "e2e"):
        for number, item in enumerate(table.take(role, a_list, "a list of packages", []), 1):
            where = f"[packages] {role}, entry {number},"
            found.append(_package(Table(table.file, where, {"path": item} if isinstance(item, str) else item), role))
    table.finish()
    return tuple(found)


def _package(table: Table, role: str) -> Package:
    default = Package("", role, "")
    path = table.take("path", a_name, "a folder relative to harness.toml", "")
    if not path:
        table.fail("has no path", 'Add `path = "FOLDER"`.')
    package = Package(
        name=table.take("name", a_name, "a name", Path(path).as_posix()),
        role=role,
        path=Path(path).as_posix(),
        command=table.take("command", an_argv, "a list of arguments", default.command),
        timeout=table.take("timeout", seconds, "seconds above 0", default.timeout),
        junit=table.take("junit", a_name, "the JUnit file that the command writes", default.junit),
        allow_empty=table.take("allow_empty", a_flag, "true or false", default.allow_empty),
        allow_residue=table.take("allow_residue", a_flag, "true or false", default.allow_residue),
    )
    table.finish()
    return package


def _run(table: Table) -> Run:
    default = Run()
    run = Run(
        fork=table.take("fork", a_flag, "true or false", default.fork),
        residue=table.take("residue", one_of("warn", "off", "fail"), "'warn', 'off' or 'fail'", default.residue),
        strict=table.take("strict", one_of("ci", "always", "never"), "'ci', 'always' or 'never'", default.strict),
        grace=table.take("grace", seconds, "seconds above 0", default.grace),
    )
    table.finish()
    return run


def _stack(table: Table) -> Stack:
    default = Stack()
    options = table.table("settings")
    stack = Stack(
        server=table.take("server", one_of(*SERVERS), "one of " + ", ".join(SERVERS), default.server),
        major=table.take("major", major, "a major version from 13", default.major),
        ports=table.take("ports", port_range, "[first, last], each from 1024 to 65535", default.ports),
        durable=table.take("durable", a_flag, "true or false", default.durable),
        directory=table.take("directory", a_name, "a folder", default.directory),
        createdb=table.take("createdb", a_flag, "true or false", default.createdb),
        settings=tuple((key, options.take(key, a_setting, "text, a number, true or false", "")) for key in list(options.left)),
    )
    table.finish()
    return stack


def _no_doubles(table: Table, what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise UsageError(f"{table.file}: {what} {name!r} stands twice", next="Make each one differ.")
        seen.add(name)
