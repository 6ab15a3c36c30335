"""harness.toml, the only settings file, as frozen values; and the process's environment, read here only."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from harness.errors import UsageError
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
    import tomli

    path = root / FILE
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 (byte {error.start})", next="Save it as UTF-8.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", next="Make it a readable file.") from None
    try:
        document = tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}", next="Mend that line.") from None
    return _settings(root.resolve(), _Table(str(path), "", document))


class _Table:
    """A TOML table being read: each key is taken once, and what is left over at the end is an error."""

    def __init__(self, file: str, where: str, value: object) -> None:
        self.file, self.where = file, where
        if not isinstance(value, dict):
            self.fail(f"is {value!r}, not a table", "Write it as a table.")
        self.left: dict[str, Any] = dict(value)
        self.known: list[str] = []

    def fail(self, finding: str, advice: str) -> NoReturn:
        raise UsageError(f"{self.file}: {self.where or 'the file'} {finding}", next=advice)

    def take(self, key: str, read: Callable[[Any], Any], wanted: str, default: Any) -> Any:
        self.known.append(key)
        if key not in self.left:
            return default
        value = self.left.pop(key)
        try:
            return read(value)
        except (TypeError, ValueError):
            self.fail(f"{key} is {value!r}", f"It takes {wanted}.")

    def table(self, key: str) -> _Table:
        self.known.append(key)
        where = f"{self.where[:-1]}.{key}]" if self.where else f"[{key}]"
        return _Table(self.file, where, self.left.pop(key, {}))

    def tables(self, key: str) -> list[_Table]:
        items = self.take(key, _a_list, f"tables, each headed [[{key}]]", [])
        return [_Table(self.file, f"[[{key}]] number {number}", item) for number, item in enumerate(items, 1)]

    def finish(self) -> None:
        for key in self.left:
            import difflib

            near = difflib.get_close_matches(key, self.known, n=1, cutoff=0.5)
            meant = f"Did you mean {near[0]!r}?" if near else f"Known here: {', '.join(self.known)}."
            self.fail(f"has the unknown key {key!r}", meant)


def _settings(root: Path, top: _Table) -> Settings:
    databases = _databases(top.table("databases"))
    streams = tuple(_stream(table) for table in top.tables("migrations"))
    _no_doubles(top, "[[migrations]] stream", [stream.name for stream in streams])
    packages = _packages(top.table("packages"))
    _no_doubles(top, "[packages] name", [package.name for package in packages])
    if any(package.role == "e2e" for package in packages) and not any(database.role == "e2e" for database in databases):
        top.fail("has e2e packages but no e2e database", 'Add `e2e = "NAME"` to [databases].')
    table = top.table("environment")
    variables = tuple((key, table.take(key, _a_text, "text", "")) for key in list(table.left))
    run, stack = _run(top.table("run")), _stack(top.table("stack"))
    top.finish()
    return Settings(root, databases, streams, packages, variables, run, stack)


def _databases(table: _Table) -> tuple[Database, ...]:
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


def _database(table: _Table, default: Database, value: object) -> Database:
    if isinstance(value, str):
        return default._replace(name=_a_name(value))
    inner = _Table(table.file, f"[databases.{default.role}]", value)
    name = inner.take("name", _a_name, "a database name", default.name)
    variable = inner.take("variable", _a_variable, "the name of an environment variable", default.variable)
    inner.finish()
    return Database(default.role, name, variable)


def _stream(table: _Table) -> Stream:
    default = Stream("")
    stream = Stream(
        name=table.take("stream", _a_name, "a name", ""),
        directory=table.take("directory", _a_name, "a folder", default.directory),
        command=table.take("command", _an_argv, "a list of arguments", default.command),
        as_maintenance=table.take("as", _one_of("maintenance"), "'maintenance'", "") == "maintenance",
        variable=table.take("variable", _a_variable, "the name of an environment variable", default.variable),
        scheme=table.take("url", _a_name, "a URL scheme such as 'postgresql+psycopg'", default.scheme),
        inputs=table.take("inputs", _texts, "a list of file patterns", default.inputs),
        timeout=table.take("timeout", _seconds, "seconds above 0", default.timeout),
    )
    table.finish()
    if not stream.name:
        table.fail("has no stream", 'Add `stream = "NAME"`.')
    if bool(stream.directory) == bool(stream.command):
        table.fail("needs either directory or command", "Give one of them.")
    return stream


def _packages(table: _Table) -> tuple[Package, ...]:
    found = []
    for role in ("test", "e2e"):
        for number, item in enumerate(table.take(role, _a_list, "a list of packages", []), 1):
            where = f"[packages] {role}, entry {number},"
            found.append(_package(_Table(table.file, where, {"path": item} if isinstance(item, str) else item), role))
    table.finish()
    return tuple(found)


def _package(table: _Table, role: str) -> Package:
    default = Package("", role, "")
    path = table.take("path", _a_name, "a folder relative to harness.toml", "")
    if not path:
        table.fail("has no path", 'Add `path = "FOLDER"`.')
    package = Package(
        name=table.take("name", _a_name, "a name", Path(path).as_posix()),
        role=role,
        path=Path(path).as_posix(),
        command=table.take("command", _an_argv, "a list of arguments", default.command),
        timeout=table.take("timeout", _seconds, "seconds above 0", default.timeout),
        junit=table.take("junit", _a_name, "the JUnit file that the command writes", default.junit),
        allow_empty=table.take("allow_empty", _a_flag, "true or false", default.allow_empty),
        allow_residue=table.take("allow_residue", _a_flag, "true or false", default.allow_residue),
    )
    table.finish()
    return package


def _run(table: _Table) -> Run:
    default = Run()
    run = Run(
        fork=table.take("fork", _a_flag, "true or false", default.fork),
        residue=table.take("residue", _one_of("warn", "off", "fail"), "'warn', 'off' or 'fail'", default.residue),
        strict=table.take("strict", _one_of("ci", "always", "never"), "'ci', 'always' or 'never'", default.strict),
        grace=table.take("grace", _seconds, "seconds above 0", default.grace),
    )
    table.finish()
    return run


def _stack(table: _Table) -> Stack:
    default = Stack()
    options = table.table("settings")
    stack = Stack(
        server=table.take("server", _one_of(*SERVERS), "one of " + ", ".join(SERVERS), default.server),
        major=table.take("major", _major, "a major version from 13", default.major),
        ports=table.take("ports", _port_range, "[first, last], each from 1024 to 65535", default.ports),
        durable=table.take("durable", _a_flag, "true or false", default.durable),
        directory=table.take("directory", _a_name, "a folder", default.directory),
        createdb=table.take("createdb", _a_flag, "true or false", default.createdb),
        settings=tuple((key, options.take(key, _a_setting, "text, a number, true or false", "")) for key in list(options.left)),
    )
    table.finish()
    return stack


def _no_doubles(table: _Table, what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise UsageError(f"{table.file}: {what} {name!r} stands twice", next="Make each one differ.")
        seen.add(name)


def _a_text(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise TypeError
    return value


def _a_name(value: object) -> str:
    text = _a_text(value)
    if not text.strip():
        raise ValueError
    return text


def _a_variable(value: object) -> str:
    import re

    text = _a_text(value)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise ValueError
    return text


def _a_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _a_setting(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) if isinstance(value, (int, float)) else _a_text(value)


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ValueError
    return float(value)


def _major(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 13:  # noqa: PLR2004  # WITH (FORCE) came with 13
        raise ValueError
    return value


def _port_range(value: object) -> tuple[int, int]:
    first, last = _a_list(value)
    for port in (first, last):
        if isinstance(port, bool) or not isinstance(port, int) or not 1024 <= port <= 65535:  # noqa: PLR2004  # the unprivileged ports
            raise ValueError
    if first > last:
        raise ValueError
    return first, last


def _a_list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _texts(value: object) -> tuple[str, ...]:
    return tuple(_a_name(item) for item in _a_list(value))


def _an_argv(value: object) -> tuple[str, ...]:
    texts = tuple(_a_text(item) for item in _a_list(value))
    if not texts or not texts[0]:
        raise ValueError
    return texts


def _one_of(*allowed: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in allowed:
            raise ValueError
        return _a_text(value)

    return read
