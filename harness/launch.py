"""Start the server of a data folder on its port, record it, and prove that what answers is it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness import datafolder, leases, postmaster, servers
from harness.datafolder import Record
from harness.errors import Refusal, StackFailure
from harness.settings import BOOTSTRAP, Settings

if TYPE_CHECKING:
    from harness.database import Connection

_LOG_LIMIT = 10_000_000


class PortTaken(StackFailure):
    """The server could not bind its port."""


def settled(settings: Settings, data: Path, record: Record) -> postmaster.Postmaster | None:
    """Return the running server, ready, at its place and on its port; one that is elsewhere, as after a move, is stopped."""
    found = postmaster.running(data, record.process)
    if found and (found.data, found.port) == (str(data), record.port):
        postmaster.wait_until_ready(data, found.pid, log_of(settings), log_size(settings))
        return found
    if found:
        stop(settings, data, record, found)
    return None


def stop(settings: Settings, data: Path, record: Record, found: postmaster.Postmaster) -> bool:
    """Stop the server of `data`, nothing committed lost; False when it is no longer that server."""
    started = postmaster.start_of(found.pid)
    if found.data == str(data):
        return postmaster.stop(found.pid, started, found.data)
    # It looks for pg_control under its folder's former name, so that a last checkpoint would fail: what is committed goes
    # into the log, and the next start recovers it.
    with connect_as_superuser(settings, record._replace(port=found.port)) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        connection.execute("SELECT pg_switch_wal()")
        return postmaster.stop(found.pid, started, found.data, at_once=True)


def start(settings: Settings, data: Path, record: Record, kind: str) -> Record:
    """Start the server and wait until it is ready; return the record with its process, written down before it is ready.

    Raises PortTaken when another program has the port, else StackFailure.
    """
    server = server_of(data, record, settings, kind)
    account = servers.choose_account(settings.root, data, server)
    datafolder.adopt_owner(data, account)
    postmaster.disown_stale_file(data)
    log = log_of(settings)
    offset = log_size(settings)
    if offset > _LOG_LIMIT:
        log.unlink()
        offset = 0
    options = options_for(settings, record.port)
    pid, started = postmaster.start(server, account, data, options, log)
    record = record._replace(pid=pid, started=started, options=options, programs=str(server.programs), embedded=server.embedded)
    record = note(settings, data, record)
    try:
        postmaster.wait_until_ready(data, pid, log, offset)
    except StackFailure as failure:
        if not postmaster.start_of(pid) and leases.is_taken(record.port):
            raise PortTaken(
                f"port {record.port} of this worktree is taken by another program",
                next=f"End that program, or run {BOOTSTRAP}, which takes another port.",
            ) from failure
        raise
    return record


def note(settings: Settings, data: Path, record: Record) -> Record:
    """Write down which process serves, in the data folder and, for the day that it is gone, in the lease."""
    if datafolder.read_record(data) != record:
        datafolder.write_record(data, record)
    lease = leases.read(settings.root) or leases.Lease(str(settings.root), record.port)
    wanted = lease._replace(
        port=record.port, data=str(data), pid=record.pid, started=record.started, system_identifier=record.system_identifier
    )
    if wanted != lease:
        leases.save(wanted)
    return record


def server_of(data: Path, record: Record, settings: Settings, kind: str) -> servers.Server:
    """Return a server of the data folder's version, the one that made it where it still runs."""
    if settings.stack.major not in (None, record.major):
        raise StackFailure(
            f"the data folder {str(data)!r} is PostgreSQL {record.major}'s, and harness.toml asks for {settings.stack.major}", next=_KEEP
        )
    version, _ = servers.ask_version(Path(record.programs))
    if version and version[0] == record.major:
        return servers.Server(Path(record.programs), version, record.embedded)
    try:
        return servers.find("embedded" if record.embedded else kind, record.major)
    except StackFailure as failure:
        raise StackFailure(f"the data folder {str(data)!r} is PostgreSQL {record.major}'s: {failure.message}", next=_KEEP) from failure


_KEEP = (
    "Install that version again (or name it in harness.toml); or, when the application's database in the folder is not needed,"
    f" move the folder away and run {BOOTSTRAP}. Nothing was changed."
)


def log_of(settings: Settings) -> Path:
    """Return the server's log."""
    return datafolder.stack_folder(settings) / "log"


def log_size(settings: Settings) -> int:
    """Return where the log's next line will begin."""
    log = log_of(settings)
    return log.stat().st_size if log.exists() else 0


def options_for(settings: Settings, port: int) -> list[str]:
    """Return the server's arguments: ours, then [stack.settings], then what is not to be changed."""
    values = {
        "max_connections": "200",
        "max_prepared_transactions": "20",
        "log_line_prefix": "%m [%p] %q%u@%d ",
        **_durability(settings),
        **_QUIET,
        **dict(settings.stack.settings),
        **decided(port),
    }
    return [part for name, value in values.items() for part in ("-c", f"{name}={value}")]


_QUIET = {"autovacuum_naptime": "30min", "log_checkpoints": "off"}
"""What keeps an idle cluster idle; what a test sees does not depend on it."""


def _durability(settings: Settings) -> dict[str, str]:
    return dict.fromkeys(("fsync", "synchronous_commit", "full_page_writes"), "on" if settings.stack.durable else "off")


def decided(port: int) -> dict[str, str]:
    """Return the settings that are not harness.toml's to change: loopback only, no socket, passwords never in clear."""
    return {"listen_addresses": datafolder.HOST, "port": str(port), "unix_socket_directories": "", "password_encryption": "scram-sha-256"}


def connect_as_superuser(settings: Settings, record: Record) -> Connection:
    """Return a superuser's connection, by the former password where a bootstrap was killed before the new one was in force."""
    from harness import database

    variable = settings.database("maintenance").variable
    try:
        return database.connect(record.dsn(variable, record.superuser, "postgres"), purpose="stack")
    except Refusal:
        if not record.former:
            raise
        return database.connect(record.dsn(variable, record.superuser, "postgres", password=record.former), purpose="stack")


def connect(settings: Settings, data: Path, record: Record) -> Connection:
    """Return a superuser's connection to the cluster, proven to be ours and set as it should be."""
    from harness import provision

    connection = connect_as_superuser(settings, record)
    given = dict(settings.stack.settings)
    expected = {name: value for name, value in _durability(settings).items() if name not in given} | decided(record.port)
    finding = provision.prove(connection, data, record.system_identifier, expected)
    if finding:
        connection.close()
        raise StackFailure(f"port {record.port}: {finding}", next=f"Run `inv stack-down`, then {BOOTSTRAP}.")
    return connection
