"""The worktree's own cluster: make it, start it, prove that it is ours, stop it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from harness import datafolder, envwriter, launch, leases, postmaster, servers
from harness.datafolder import Record
from harness.errors import StackFailure, UsageError
from harness.settings import BOOTSTRAP, Settings
from harness.targets import Dsn

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Ours(NamedTuple):
    """A worktree's running cluster, as its own files say; whoever connects proves it against these."""

    port: int
    pid: int
    major: int
    data: str
    system_identifier: str
    just_started: bool


def ensure_running(settings: Settings, maintenance: Dsn) -> Ours | None:
    """Return this worktree's cluster, started where it was stopped; None when `maintenance` leads elsewhere.

    Where it runs only files are read. Raises StackFailure for a cluster that is gone, of another worktree, or cannot start.
    """
    data = datafolder.find(settings)
    record = datafolder.read_record(data)
    if record is None:
        lease = leases.read(settings.root)
        if lease and lease.data and _is_at(maintenance, lease.port):
            raise StackFailure(f"this worktree's cluster is gone: there is no {lease.data!r}", next=f"Run {BOOTSTRAP}.")
        return None
    if not _is_at(maintenance, record.port):
        return None
    prove_here(settings, record)
    found = _running_here(data, record)
    if found:
        return _ours(data, record, found.pid, just_started=False)
    with leases.alone(settings.root):
        record = datafolder.read_record(data) or record
        found = launch.settled(settings, data, record)
        if found:
            return _ours(data, record, found.pid, just_started=False)
        record = launch.start(settings, data, record, "auto")
        launch.connect(settings, data, record).close()
    return _ours(data, record, record.pid, just_started=True)


def prove_here(settings: Settings, record: Record) -> None:
    """Raise StackFailure when the data folder came here with a copied or moved worktree."""
    if datafolder.is_copy(settings, record):
        raise StackFailure(
            f"the data folder of {str(settings.root)!r} was copied from the worktree {record.worktree!r}, whose it is",
            next=f"Run {BOOTSTRAP}, which makes this worktree a cluster of its own.",
        )
    if datafolder.moved_from(settings, record):
        raise StackFailure(f"this worktree's cluster was made in {record.worktree!r}, before it was moved", next=f"Run {BOOTSTRAP}.")


def _is_at(dsn: Dsn, port: int) -> bool:
    return dsn.port == port and (dsn.hostaddr or dsn.host) in _LOOPBACK


def _ours(data: Path, record: Record, pid: int, *, just_started: bool) -> Ours:
    return Ours(record.port, pid, record.major, str(data), record.system_identifier, just_started)


def _running_here(data: Path, record: Record) -> postmaster.Postmaster | None:
    """Return the running server where it is ready, at its place and on its port."""
    found = postmaster.running(data, record.process)
    return found if found and found.is_ready and (found.data, found.port) == (str(data), record.port) else None


def up(
    settings: Settings, *, server: str = "", force: bool = False, shell: Mapping[str, str], say: Callable[[str], None] = lambda _: None
) -> Ours | None:
    """Make, start and prove this worktree's cluster, bring its roles and databases in order, then write test/.env.

    In place it changes nothing. None for an external server, of which only test/.env is written. Raises UsageError
    for lines of test/.env that were changed by hand (unless `force`), StackFailure for what stands in the way.
    """
    kind = server or settings.stack.server
    with leases.alone(settings.root) as lock:
        if kind == "external":
            _write_external(settings, shell, force=force, say=say)
            return None
        _check_names(settings)
        data = datafolder.prepare(settings)
        record, former = _inherited(settings, data, say)
        _stop_orphan(settings.root, data, record, say)
        lease = leases.take(settings.root, settings.stack.ports, former=former, recorded=record.port if record else 0)
        if record is None:
            record = _make(settings, data, kind, lease.port, shell, say, lock=lock)
        record = _renewed(settings, data, record, shell)
        _check_kind(data, record, kind)
        record, just_started = _bring_up(settings, data, record, lease, kind, say)
        _provision(settings, data, record, str(former) if former else "")
        record = launch.note(settings, data, record._replace(worktree=str(settings.root), renew=False, former=""))
        _write_env(settings, record, force=force, former=str(former) if former else "")
    return _ours(data, record, record.pid, just_started=just_started)


def _check_names(settings: Settings) -> None:
    if "\n" in str(settings.root):
        raise UsageError(
            f"the worktree's path {str(settings.root)!r} has a line break, and PostgreSQL's own files could not hold it",
            next="Move the worktree.",
        )
    for role, name in datafolder.names(settings).items():
        if name.startswith("pg_"):
            raise UsageError(
                f"harness.toml: [databases] {role} {name!r} cannot be a role's name too",
                next="PostgreSQL keeps pg_ for itself; choose another name.",
            )
    for key, _ in settings.stack.settings:
        if key in launch.decided(0):
            raise UsageError(f"harness.toml: [stack.settings] has {key!r}, which the harness decides", next="Remove it.")


def _inherited(settings: Settings, data: Path, say: Callable[[str], None]) -> tuple[Record | None, Path | None]:
    """Return the record of the data folder that is here, and its former place after a move; a copy is set aside."""
    record = datafolder.read_record(data)
    if record is None:
        return None, None
    if datafolder.is_copy(settings, record):
        aside = datafolder.set_aside(data)
        say(f"the data folder here was a copy of {record.worktree!r}'s; it is kept as {str(aside)!r}, and a new one is made")
        return None, None
    return record, datafolder.moved_from(settings, record)


def _stop_orphan(root: Path, data: Path, record: Record | None, say: Callable[[str], None]) -> None:
    """Stop the server that this worktree recorded and whose data folder was deleted or replaced under it."""
    lease = leases.read(root)
    if lease is None or not lease.pid or (record and record.pid == lease.pid):
        return
    current = postmaster.running(data, (0, ""))
    if current and current.pid == lease.pid:
        return
    if postmaster.stop(lease.pid, lease.started, lease.data, at_once=True):
        say(f"stopped this worktree's former server (pid {lease.pid}), whose data folder is gone")


def _make(
    settings: Settings, data: Path, kind: str, port: int, shell: Mapping[str, str], say: Callable[[str], None], *, lock: int
) -> Record:
    server = servers.find(kind, settings.stack.major)
    account = servers.choose_account(settings.root, data.parent, server)
    if account.prefix and os.geteuid() == 0:
        say("the server runs in a user namespace; outside it is root's, and so is every program that its superuser starts")
    superuser = datafolder.SUPERUSER
    while superuser in datafolder.names(settings).values():
        superuser += "_"
    passwords = {superuser: _new_password(shell)}
    record = Record(str(settings.root), port, "", server.major, str(server.programs), server.embedded, superuser, passwords)
    return datafolder.make(data, server, account, record, lock=lock)


def _new_password(shell: Mapping[str, str]) -> str:
    from harness import provision

    given = shell.get("HARNESS_PASSWORD", "")
    if not given.isprintable():
        raise UsageError("HARNESS_PASSWORD has a control character", next="Choose a password of printable characters.")
    return given or provision.random_password()


def _renewed(settings: Settings, data: Path, record: Record, shell: Mapping[str, str]) -> Record:
    """Return the record with a password for every role, each HARNESS_PASSWORD where that is set.

    Written down before it is in force: a bootstrap that is killed in between leaves a record that still opens the door.
    """
    wanted = (record.superuser, *datafolder.names(settings).values())
    given = shell.get("HARNESS_PASSWORD", "")
    passwords = {name: given or record.passwords.get(name) or _new_password(shell) for name in wanted}
    if passwords == record.passwords:
        return record
    former = record.passwords[record.superuser] if passwords[record.superuser] != record.passwords[record.superuser] else record.former
    record = record._replace(passwords=passwords, renew=True, former=former)
    datafolder.write_record(data, record)
    return record


def _check_kind(data: Path, record: Record, kind: str) -> None:
    if kind != "auto" and record.embedded != (kind == "embedded"):
        made = "the embedded" if record.embedded else "the system's"
        raise StackFailure(
            f"the data folder {str(data)!r} was made by {made} PostgreSQL {record.major}, and the {kind} server is asked for",
            next=f"Run `inv stack-down`, move the folder away (the application's database is in it), then run {BOOTSTRAP}.",
        )


def _bring_up(
    settings: Settings, data: Path, record: Record, lease: leases.Lease, kind: str, say: Callable[[str], None]
) -> tuple[Record, bool]:
    """Return the record of the cluster running at its place, on its leased port or on another one where that is taken."""
    record = record._replace(port=lease.port)
    found = launch.settled(settings, data, record)
    if found and record.options != launch.options_for(settings, record.port):
        say("harness.toml's settings of the server have changed; it is started again")
        launch.stop(settings, data, record, found)
    elif found:
        return launch.note(settings, data, record._replace(pid=found.pid, started=postmaster.start_of(found.pid))), False
    avoid: frozenset[int] = frozenset()
    while (started := _start_unless_taken(settings, data, record, kind, say)) is None:
        avoid |= {record.port}
        record = record._replace(port=leases.take(settings.root, settings.stack.ports, avoid=avoid).port)
        say(f"this worktree moves to port {record.port}")
    return started, True


def _start_unless_taken(settings: Settings, data: Path, record: Record, kind: str, say: Callable[[str], None]) -> Record | None:
    try:
        return launch.start(settings, data, record, kind)
    except launch.PortTaken as taken:
        say(taken.message)
        return None


def _provision(settings: Settings, data: Path, record: Record, former: str) -> None:
    from harness import provision

    with launch.connect(settings, data, record) as connection:
        provision.provision(connection, settings, record.passwords, renew=record.renew, former=former)


def _write_env(settings: Settings, record: Record, *, force: bool, former: str) -> None:
    values = {}
    for database in settings.databases:
        user = record.superuser if database.role == "maintenance" else database.name
        values[database.role] = record.dsn(database.variable, user, database.name).text
    _write(settings, values, force=force, former=former)


def _write(settings: Settings, values: Mapping[str, str], *, force: bool, former: str = "") -> None:
    lease = leases.read(settings.root) or leases.Lease(str(settings.root), 0)
    written = envwriter.write(settings, values, force=force, written=lease.written, former=former)
    if written != lease.written:
        leases.save(lease._replace(written=written))


def _write_external(settings: Settings, shell: Mapping[str, str], *, force: bool, say: Callable[[str], None]) -> None:
    """Write test/.env from the shell's own DSNs; the maintenance DSN defaults to the test one's server."""
    from harness.targets import parse_dsn

    dsns = {}
    for database in settings.databases:
        text = shell.get(database.variable, "")
        if text:
            dsns[database.role] = parse_dsn(database.variable, text)
        elif database.role != "maintenance":
            raise UsageError(
                f"{database.variable} is not set, and --server external takes the DSNs from the environment", next="Export it."
            )
    maintenance = settings.database("maintenance")
    if "maintenance" not in dsns:
        dsns["maintenance"] = dsns["test"].at(maintenance.name)._replace(variable=maintenance.variable)
    for dsn in dsns.values():
        if dsn.port != dsns["application"].port:
            say(f"{dsn.variable} is on port {dsn.port}, {dsns['application'].variable} on {dsns['application'].port}")
    values = {role: dsn.text if "://" in dsn.text else dsn.url() for role, dsn in dsns.items()}
    _write(settings, values, force=force)


def wants_embedded(settings: Settings, server: str) -> bool:
    """Say whether the embedded server has to be installed before `up` can work: no other is here, or it made the data."""
    kind = server or settings.stack.server
    data = datafolder.find(settings)
    record = datafolder.read_record(data)
    if kind in ("external", "system") or servers.has_embedded():
        return False
    if record and not datafolder.is_copy(settings, record):
        return record.embedded
    return kind == "embedded" or not servers.has_system(settings.stack.major)


def down(settings: Settings) -> bool:
    """Stop this worktree's cluster and keep its data; False when it did not run."""
    with leases.alone(settings.root):
        data = datafolder.find(settings)
        record, is_torn = None, False
        try:
            record = datafolder.read_record(data)
        except StackFailure:
            is_torn = True  # the lease knows the server too
        if record and datafolder.is_copy(settings, record):
            return False
        found = postmaster.running(data, record.process) if record else None
        lease = leases.read(settings.root)
        stopped = bool(record and found and launch.stop(settings, data, record, found))
        if lease and not found:
            stopped = postmaster.stop(lease.pid, lease.started, lease.data, at_once=not is_torn)
        if lease and lease.pid:
            leases.save(lease._replace(pid=0, started=""))
    return stopped
