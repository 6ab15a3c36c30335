"""Connections to PostgreSQL, and the questions asked over them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.errors import Refusal, ResetFailed, StackFailure, redact
from harness.targets import Dsn, Identity, Stamp, check_parameters, read_stamp

if TYPE_CHECKING:
    import psycopg
    from psycopg import Error as Error  # noqa: PLC0414  # re-exported

    Connection = psycopg.Connection[tuple[Any, ...]]


def __getattr__(name: str) -> Any:
    # `database.Error` is psycopg's, imported when a failure is first looked at: the import costs more than a reset.
    if name == "Error":
        from psycopg import Error

        return Error
    raise AttributeError(name)


CONNECT_TIMEOUT = 10
"""Seconds; libpq's own default is over two minutes."""
STARTUP_TIMEOUT = 30.0
"""Seconds that a server which says "starting up" is waited for."""

INVALID = -2
"""`datconnlimit` of a database whose drop was interrupted: any ALTER on it ends our session, only DROP works."""


class Server(NamedTuple):
    """What a server says of itself and of the role that asks."""

    system_identifier: str
    version: int
    in_recovery: bool
    role: str
    superuser: bool
    createdb: bool
    signal_backend: bool
    data_directory: str | None
    fsync: bool
    locale: str


class DatabaseRow(NamedTuple):
    """One row of pg_database; `may_own` says whether the asking role has the owner's rights."""

    name: str
    oid: int
    owner: str
    may_own: bool
    allows_connections: bool
    connection_limit: int
    is_template: bool
    stamp: Stamp | None

    @property
    def invalid(self) -> bool:
        """Whether an interrupted drop left it behind."""
        return self.connection_limit == INVALID


def connect(dsn: Dsn, *, purpose: str, autocommit: bool = True) -> Connection:
    """Open a session of ours: named `harness PURPOSE`, direct, free of the role's own time-outs and read-only default.

    Waits for a server that is starting up. Raises StackFailure when no server answers, ResetFailed when it does not
    finish starting, Refusal when it says no or a pooler stands in front.
    """
    connection = _open(dsn, purpose)
    with _asking(dsn):
        # A pooler hands its sessions around, and announces none of them: in one of its own nothing is set.
        settings = f"{session_settings(connection.info.server_version)} WHERE pg_backend_pid() = {connection.info.backend_pid}"
        if connection.execute(settings.encode()).fetchone() is None:
            connection.close()
            raise pooled(dsn)
    connection.autocommit = autocommit
    return connection


@contextmanager
def _asking(dsn: Dsn) -> Iterator[None]:
    import psycopg

    try:
        yield
    except psycopg.OperationalError as error:
        raise StackFailure(f"the server of {dsn.label} ended the session: {error}", next="Start it, and run the command again.") from error
    except psycopg.Error as error:
        raise Refusal(
            f"{dsn.label} may not be asked whose it is: {error}", next="Give its role the right to read what it may not."
        ) from error


def pooled(dsn: Dsn) -> Refusal:
    """Return the refusal of a connection pooler, where locks and settings end up with other clients."""
    return Refusal(
        f"{dsn.label} leads through a connection pooler, and pooled connections are not supported: they keep locks and settings after we left",
        next=f"Give {dsn.variable} in test/.env the server's own host and port.",
    )


def session_settings(version: int) -> str:
    """Return the SELECT that lifts, in this session only, what a role's settings would do to ours."""
    names = ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"]
    if version >= 140000:  # noqa: PLR2004  # PostgreSQL 14
        names.append("idle_session_timeout")
    if version >= 170000:  # noqa: PLR2004  # PostgreSQL 17
        names.append("transaction_timeout")
    lifted = {**dict.fromkeys(names, "0"), "default_transaction_read_only": "off"}
    return "SELECT " + ", ".join(f"pg_catalog.set_config('{name}', '{value}', false)" for name, value in lifted.items())


_OURS = ("application_name", "client_encoding", "connect_timeout", "replication")
"""Parameters of a DSN that tests see and our own sessions do not take over."""
_ADDRESS = ("host", "hostaddr", "port", "connect_timeout")


def _open(dsn: Dsn, purpose: str) -> Connection:
    import psycopg

    given = {key: value for key, value in dsn.parameters().items() if key not in _OURS}
    given |= {"application_name": f"harness {purpose}", "client_encoding": "UTF8", "connect_timeout": str(CONNECT_TIMEOUT)}
    deadline, refused = time.monotonic() + STARTUP_TIMEOUT, False
    while True:
        try:
            return psycopg.connect(**given, autocommit=True)  # type: ignore[arg-type]  # libpq takes text for every parameter
        except psycopg.errors.ConnectionTimeout as error:
            raise _nobody(dsn, str(error)) from error
        except psycopg.OperationalError as error:
            # Twice: the first time it may have been starting up still, and be ready when the ping came.
            refused = _explain(dsn, given, error, late=time.monotonic() > deadline, refused=refused)
        if not refused:
            time.sleep(0.02)


def _explain(dsn: Dsn, given: dict[str, str], error: Exception, *, late: bool, refused: bool) -> bool:
    """Raise what a failed connection means, told by a ping and not by the text; return whether the server said no where it may be tried again."""
    from psycopg.conninfo import make_conninfo
    from psycopg.pq import PGconn, Ping

    check_parameters(dsn)
    text = redact(" ".join(str(error).split()))
    # By its address alone: a server without SSL answers, though not to one who requires it.
    ping = PGconn.ping(make_conninfo(**{key: given[key] for key in _ADDRESS if key in given}).encode())
    if ping == Ping.REJECT and late:
        raise ResetFailed(f"{dsn.label}: {text}", next="Wait until the server has started.") from error
    if ping == Ping.OK and refused:
        named = ", ".join(["role", "password", *(key for key, _ in dsn.extra if key not in _OURS)])
        raise Refusal(
            f"{dsn.label}: the server says no: {text}", next=f"Mend the {named} or database it names, or the limit it has reached."
        ) from error
    if ping in (Ping.NO_RESPONSE, Ping.NO_ATTEMPT):
        raise _nobody(dsn, text) from error
    return ping == Ping.OK


def _nobody(dsn: Dsn, text: str) -> StackFailure:
    return StackFailure(f"no server answers for {dsn.label}: {text}", next="Start it, or run test/bootstrap-stack.sh.")


class Answer(NamedTuple):
    """Whose database a DSN opened; whether by a pooler, and on a standby (which has its primary's identifier)."""

    identity: Identity
    in_recovery: bool
    pooled: bool


def identify(dsn: Dsn) -> Answer:
    """Ask the server that `dsn` leads to whose database it opens; reads only, through a pooler too.

    Raises what `connect` raises.
    """
    with _open(dsn, "identity") as connection, _asking(dsn):
        row = connection.execute(
            """SELECT (SELECT system_identifier::text FROM pg_control_system()), oid, pg_is_in_recovery(), pg_backend_pid()
               FROM pg_database WHERE datname = current_database()"""
        ).fetchone()
        assert row is not None  # noqa: S101  # a session always has its own database
        return Answer(Identity(row[0], row[1]), row[2], row[3] != connection.info.backend_pid)


@contextmanager
def failing_as(what: str, *, next: str = "Mend it and run `inv reset` again.") -> Iterator[None]:  # noqa: A002  # as in HarnessError
    """Turn a server's error into ResetFailed: what was tried, the server's text and its SQLSTATE."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        state = f" (SQLSTATE {error.sqlstate})" if error.sqlstate else ""
        text = error.diag.message_primary or str(error)
        raise ResetFailed(f"{what}: {text}{state}", next=next) from error


def quoted(name: str) -> str:
    """Return an SQL identifier, quoted."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return an SQL string literal that reads the same whatever standard_conforming_strings says."""
    escaped = text.replace("'", "''")
    return " E'" + escaped.replace("\\", "\\\\") + "'" if "\\" in text else f"'{escaped}'"


def ask_server(connection: Connection) -> Server:
    """Return the facts that the guard and the cloning strategy need, in one round trip."""
    row = connection.execute("""
        SELECT (SELECT system_identifier::text FROM pg_control_system()), current_setting('server_version_num')::int,
               pg_is_in_recovery(), current_user::text, r.rolsuper, r.rolcreatedb, pg_has_role('pg_signal_backend', 'USAGE'),
               CASE WHEN pg_has_role('pg_read_all_settings', 'USAGE') THEN current_setting('data_directory') END,
               current_setting('fsync')::boolean, (SELECT datcollate || ' ' || datctype FROM pg_database WHERE datname = 'template0')
        FROM pg_roles r WHERE r.rolname = current_user""").fetchone()
    assert row is not None  # noqa: S101  # a session always has its own role
    return Server(*row)


def ask_databases(connection: Connection) -> dict[str, DatabaseRow]:
    """Return every database of the server by its name."""
    rows = connection.execute("""
        SELECT d.datname::text, d.oid, pg_get_userbyid(d.datdba)::text, pg_has_role(d.datdba, 'USAGE'), d.datallowconn, d.datconnlimit,
               d.datistemplate, shobj_description(d.oid, 'pg_database') FROM pg_database d""")
    return {row[0]: DatabaseRow(*(*row[:7], read_stamp(row[7]))) for row in rows}


def may_become(connection: Connection, roles: Iterable[str], version: int) -> dict[str, bool]:
    """Say whether databases may be made for `roles`; one that does not exist is left out."""
    right = "SET" if version >= 160000 else "MEMBER"  # noqa: PLR2004  # PostgreSQL 16 parts the two
    query = "SELECT rolname::text, pg_has_role(oid, %s::text) FROM pg_roles WHERE rolname = ANY(%s)"
    return dict(connection.execute(query, [right, list(roles)]).fetchall())


class Ran(NamedTuple):
    """How far a text went: how many of its statements were completed, and the error that stopped it."""

    completed: int
    error: psycopg.Error | None


def run_text(connection: Connection, text: str) -> Ran:
    """Send `text` as it is: one string of the simple protocol, without parameters, so that `%` stays a percent sign."""
    import psycopg
    from psycopg import errors, generators
    from psycopg.pq import ExecStatus

    completed = 0
    try:
        with connection.lock:
            connection.pgconn.send_query(text.encode())
            for result in connection.wait(generators.execute(connection.pgconn)):
                if result.status == ExecStatus.FATAL_ERROR:
                    return Ran(completed, errors.error_from_result(result, encoding="utf-8"))
                completed += 1
    except psycopg.Error as error:
        return Ran(completed, error)
    return Ran(completed, None)


def run_copy(connection: Connection, statement: str, data: str) -> Ran:
    """Send a COPY … FROM stdin and its lines."""
    import psycopg

    try:
        with connection.cursor().copy(statement.encode()) as copy:
            copy.write(data.encode())
    except psycopg.Error as error:
        return Ran(0, error)
    return Ran(1, None)


def is_idle(connection: Connection) -> bool:
    """Say whether the session is alive and in no transaction."""
    from psycopg.pq import TransactionStatus

    return connection.info.transaction_status == TransactionStatus.IDLE


def is_in_transaction(connection: Connection) -> bool:
    """Say whether the session is alive and in a transaction that has not failed."""
    from psycopg.pq import TransactionStatus

    return connection.info.transaction_status == TransactionStatus.INTRANS
