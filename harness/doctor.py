"""What is up and whose it is; what is wrong and how to mend it. Nothing here changes anything."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from harness import (
    cluster,
    database,
    datafolder,
    envfile,
    guard,
    launch,
    leases,
    lock,
    obstacles,
    postmaster,
    provision,
    servers,
    streams,
    worktree,
)
from harness import settings as settings_file
from harness.errors import HarnessError, StackFailure
from harness.settings import BOOTSTRAP, Settings
from harness.targets import Stamp

if TYPE_CHECKING:
    from harness.database import Connection
    from harness.envfile import Env

_LITTLE_SPACE = 500_000_000
_RUN = f"Run {BOOTSTRAP}."
_Answer = TypeVar("_Answer")


class ClusterState(NamedTuple):
    """A worktree's server: state is up, down, external, moved, copied or none."""

    state: str
    port: int = 0
    pid: int = 0
    major: int = 0
    data: str = ""
    system_identifier: str = ""


class DatabaseState(NamedTuple):
    """One configured database; `stamp` is None where it is not ours to reset, `sessions` None where it is absent."""

    name: str
    role: str
    stamp: Stamp | None
    sessions: int | None


class LockState(NamedTuple):
    """A run that is on: who, since when, and on which database."""

    database: str
    pid: int
    worktree: str
    since: float


class Status(NamedTuple):
    """The status document."""

    root: str
    cluster: ClusterState
    databases: tuple[DatabaseState, ...] = ()
    lock: LockState | None = None

    @property
    def is_up(self) -> bool:
        """Whether the server answers."""
        return self.cluster.state in ("up", "external")


class Check(NamedTuple):
    """One thing that was looked at; `next` says what mends it and is empty where nothing is wrong."""

    check: str
    ok: bool
    finding: str
    next: str


def status(settings: Settings, shell: Mapping[str, str]) -> Status:
    """Return what is up; starts nothing. Raises what reading test/.env and connecting raise, but for a server that is down."""
    root = str(settings.root)
    state = cluster_state(settings, shell)
    if state.state not in ("up", "external"):
        return Status(root, state)
    env = envfile.load(settings, shell)
    try:
        connection = database.connect(env.dsn("maintenance"), purpose="status")
    except StackFailure:
        return Status(root, state._replace(state="down"))
    with connection:
        rows = database.ask_databases(connection)
        found, holders = [], []
        for role, dsn in env.dsns.items():
            row = rows.get(dsn.name)
            sessions = len(obstacles.sessions(connection, [dsn.name])) if row else None
            found.append(DatabaseState(dsn.name, role, row.stamp if row else None, sessions))
            holder = lock.holder(connection, dsn.name) if role in settings.test_roles else None
            if holder:
                holders.append(LockState(dsn.name, *holder))
    return Status(root, state, tuple(found), holders[0] if holders else None)


def status_lines(found: Status) -> list[str]:
    """Return what a person reads of it."""
    cluster = found.cluster
    where = f" on port {cluster.port}" if cluster.port else ""
    server = f" (PostgreSQL {cluster.major}, pid {cluster.pid}, {cluster.data})" if cluster.pid else ""
    lines = [f"worktree {found.root}", f"cluster: {cluster.state}{where}{server}"]
    for row in found.databases:
        if row.sessions is None:
            lines.append(f"{row.role} database {row.name!r}: absent")
        else:
            whose = "ours" if row.stamp else "no stamp of ours" if row.role in ("test", "e2e") else "never reset"
            lines.append(f"{row.role} database {row.name!r}: {whose}, {row.sessions} session(s)")
    if found.lock:
        since = time.strftime("%H:%M:%S", time.localtime(found.lock.since))
        lines.append(f"in use: {found.lock.database!r} by pid {found.lock.pid} of worktree {found.lock.worktree!r} since {since}")
    if not found.is_up:
        lines.append(_RUN)
    return lines


def cluster_state(settings: Settings, shell: Mapping[str, str]) -> ClusterState:
    """Return the state of this worktree's own cluster by its files; external where test/.env leads elsewhere."""
    data = datafolder.find(settings)
    record = datafolder.read_record(data)
    if record is None:
        try:
            maintenance = envfile.load(settings, shell).dsns.get("maintenance")
        except HarnessError:
            maintenance = None
        return (
            ClusterState("external", maintenance.port) if maintenance and not leases.holds_cluster(settings.root) else ClusterState("none")
        )
    state = "down"
    found = postmaster.running(data, record.process)
    if datafolder.is_copy(settings, record):
        state = "copied"
    elif datafolder.moved_from(settings, record):
        state = "moved"
    elif found and found.is_ready:
        state = "up"
    return ClusterState(state, record.port, found.pid if found else 0, record.major, str(data), record.system_identifier)


def examine(root: Path, shell: Mapping[str, str]) -> list[Check]:
    """Return one check per thing that a run depends on; one that fails hides those that need it."""
    checks = _Checks()
    settings = checks.ask("harness.toml", lambda: settings_file.load(root), "is read")
    checks.ask("environment", lambda: worktree.prove_own_code(root), "the code and the environment are this worktree's")
    if settings is None:
        return checks.found
    checks.ask("migrations", lambda: streams.plan(settings), "the streams are in order")
    env = checks.ask("test/.env", lambda: envfile.load(settings, shell), "is this worktree's")
    for warning in env.warnings if env else ():
        checks.add("shell", finding=warning)
    checks.ask("state folder", _prove_state_folder, str(leases.state_folder()))
    is_external = settings.stack.server == "external" or cluster_state(settings, shell).state == "external"
    if not is_external:
        checks.ask("server", lambda: _prove_server_programs(settings), "its programs run")
        checks.ask("data folder", lambda: _prove_data_folder(settings), "is this worktree's")
        checks.ask("disk", lambda: _prove_space(settings), "has room")
    if env and all(role in env.dsns for role in ("application", "maintenance", *settings.test_roles)):
        _examine_server(checks, settings, env, is_external=is_external)
    return checks.found


class _Checks:
    """The list being made."""

    def __init__(self) -> None:
        self.found: list[Check] = []

    def add(self, check: str, *, ok: bool = True, finding: str, next: str = "") -> None:  # noqa: A002  # the document's own key
        self.found.append(Check(check, ok, finding, next))

    def ask(self, check: str, question: Callable[[], _Answer], fine: str) -> _Answer | None:
        """Add what `question` raises, or `fine`; return its answer."""
        try:
            answer = question()
        except HarnessError as failure:
            self.add(check, ok=False, finding=failure.message, next=failure.next)
            return None
        self.add(check, finding=fine)
        return answer


def _prove_state_folder() -> None:
    folder = leases.state_folder()
    above = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(above, os.W_OK | os.X_OK):
        raise StackFailure(f"{folder} cannot be written", next="Mend its rights, or set HARNESS_STATE_DIR to a folder of your own.")


def _prove_server_programs(settings: Settings) -> None:
    data = datafolder.find(settings)
    record = datafolder.read_record(data)
    server = (
        launch.server_of(data, record, settings, settings.stack.server)
        if record
        else servers.find(settings.stack.server, settings.stack.major)
    )
    servers.choose_account(settings.root, datafolder.existing(data), server)


def _prove_data_folder(settings: Settings) -> None:
    data = datafolder.find(settings)
    record = datafolder.read_record(data)
    if record is None:
        raise StackFailure(f"there is no cluster in {str(data)!r}", next=_RUN)
    cluster.prove_here(settings, record)
    lease = leases.read(settings.root)
    if lease is None or lease.port != record.port:
        raise StackFailure(f"port {record.port} is not leased to this worktree", next=_RUN)
    if not postmaster.running(data, record.process):
        raise StackFailure(f"the cluster in {str(data)!r} is stopped", next="Run `inv stack-up`; reset and test start it too.")


def _prove_space(settings: Settings) -> None:
    data = datafolder.existing(datafolder.find(settings))
    free = shutil.disk_usage(data).free
    if free < _LITTLE_SPACE:
        raise StackFailure(f"the disk of {str(data)!r} has {free // 1_000_000} MB left", next="Make room: a full disk stops the server.")


def _examine_server(checks: _Checks, settings: Settings, env: Env, *, is_external: bool) -> None:
    connection = checks.ask("connection", lambda: _open(settings, env, is_external=is_external), "the server is the one expected")
    if connection is None:
        return
    with connection:
        server = database.ask_server(connection)
        checks.ask("standby", lambda: guard.prove_server(server, env.dsn("maintenance"), expected=None), "the server is a primary")
        proof = guard.gather(
            settings, env, server, database.ask_databases(connection), lambda line: checks.add("application", finding=line)
        )
        for role in settings.test_roles:
            target = checks.ask(f"{role} database", lambda role=role: guard.prove(proof, role), f"{env.dsn(role).name!r} is ours to reset")  # type: ignore[misc]  # mypy cannot infer a lambda with a default
            if target:
                checks.ask(f"{role} rights", lambda target=target: guard.prove_rights(proof, [target], connection), "are enough")  # type: ignore[misc]  # as above
        checks.ask(
            "extensions", lambda: streams.check_extensions(streams.plan(settings), connection), "the server has what the streams ask for"
        )
        if not is_external:
            checks.ask("doors", lambda: _prove_doors(connection), "no database lets everyone in")


def _open(settings: Settings, env: Env, *, is_external: bool) -> Connection:
    data = datafolder.find(settings)
    record = None if is_external else datafolder.read_record(data)
    return launch.connect(settings, data, record) if record else database.connect(env.dsn("maintenance"), purpose="doctor")


def _prove_doors(connection: Connection) -> None:
    names = provision.open_to_all(connection)
    if names:
        raise StackFailure(f"everyone may connect to {', '.join(repr(name) for name in names)}", next="Run `inv stack-up`.")
