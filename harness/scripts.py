"""One SQL file on one session: run it as written, in one transaction with its ledger row, and explain what stops it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from harness import database, hints, sql
from harness.errors import ResetFailed
from harness.sql import File
from harness.targets import Dsn

if TYPE_CHECKING:
    from harness.database import Connection, Ran

_SHOWN = 300
"""Characters of a statement that a message shows."""
_SHIELDED = r"(?i)(\bPASSWORD\s+)(E?'(?:[^']|'')*')"


def check(file: File) -> None:
    """Raise ResetFailed for what must not reach a server: psql's commands, and transactions that end or stay open midway."""
    for trap in sql.read(file.text).traps:
        raise ResetFailed(f"{file.at(trap.start)} {trap.finding}; nothing of the file was run", next=trap.advice)


def run(connection: Connection, file: File, ledger: str) -> None:
    """Run a checked file on a clean session and write its `ledger` row, in the same transaction where the file has one.

    Raises ResetFailed naming stream, file, line and column, SQLSTATE and statement.
    """
    script = sql.read(file.text)
    statements = script.statements
    if script.transaction == "none":
        _run_statements(connection, file, statements)
        _expect(database.is_idle(connection), file, "leaves a transaction open")
        _clean(connection)  # it may have set another role, or read-only
        _expect_valid_indexes(connection, file)
        _run_ours(connection, file, ledger)
        return
    body = statements[:-1] if script.transaction == "own" else statements
    if script.transaction == "ours":
        _run_ours(connection, file, "BEGIN")
    if script.piecewise:
        _run_statements(connection, file, body)
    elif body:
        _run_whole(connection, file, file.text[: statements[-1].start] if script.transaction == "own" else file.text)
    _expect(database.is_in_transaction(connection), file, "ends its transaction midway")
    _run_ours(connection, file, f"SET LOCAL SESSION AUTHORIZATION DEFAULT; {ledger}")
    if script.transaction == "own":
        _run_statements(connection, file, statements[-1:])
    else:
        _run_ours(connection, file, "COMMIT")
    _expect(database.is_idle(connection), file, "leaves a transaction open")


def _expect(holds: bool, file: File, finding: str) -> None:  # noqa: FBT001  # one claim, one caller's line
    if not holds:
        advice = f"Let the file run in one piece, or put the line `{sql.MARK}` on top."
        raise ResetFailed(f"stream {file.stream!r}, {file.path} {finding}", next=advice)


def _expect_valid_indexes(connection: Connection, file: File) -> None:
    """Raise ResetFailed for an index that an earlier attempt left invalid and that `IF NOT EXISTS` passed over."""
    if "CONCURRENTLY" not in file.text.upper():
        return
    rows = connection.execute(
        """SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
           JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE NOT i.indisvalid AND c.relkind = 'i'"""
    )
    for namespace, name in rows:
        if name in file.text:
            finding = (
                f"stream {file.stream!r}, {file.path} leaves the index {namespace}.{name} invalid: an earlier attempt to build it failed"
            )
            raise ResetFailed(finding, next=f"Run DROP INDEX {database.quoted(namespace)}.{database.quoted(name)} and the command again.")


def _run_whole(connection: Connection, file: File, text: str) -> None:
    ran = database.run_text(connection, text)
    _stop_at_error(file, ran, _statement_at(file, ran), 0)


def _run_statements(connection: Connection, file: File, statements: tuple[sql.Statement, ...]) -> None:
    for statement in statements:
        if statement.data is None:
            ran = database.run_text(connection, statement.text)
        else:
            ran = database.run_copy(connection, statement.text, file.text[slice(*statement.data)])
        _stop_at_error(file, ran, statement, statement.start)


def _run_ours(connection: Connection, file: File, text: str) -> None:
    _stop_at_error(file, database.run_text(connection, text), None, None)


def _statement_at(file: File, ran: Ran) -> sql.Statement | None:
    statements = sql.read(file.text).statements
    position = ran.error.diag.statement_position if ran.error is not None else None
    if position:
        behind = [one for one in statements if one.start < int(position)]
        return behind[-1] if behind else None
    return statements[ran.completed] if ran.completed < len(statements) else None


def _stop_at_error(file: File, ran: Ran, statement: sql.Statement | None, base: int | None) -> None:
    """Raise what the server said of a text that began at `base` in the file; None: a text of ours, after the file's own."""
    if ran.error is None:
        return
    diag, state = ran.error.diag, ran.error.sqlstate or "none"
    offset = statement.start if statement else 0
    if diag.statement_position and base is not None:
        offset = base + int(diag.statement_position) - 1
    where = file.at(offset) if base is not None else f"stream {file.stream!r}, {file.path}, at its end"
    said = "; ".join(part for part in (diag.message_primary or str(ran.error), diag.message_detail, diag.message_hint) if part)
    context = f" [{diag.context.splitlines()[0]}]" if diag.context else ""
    text = statement.text if statement else ""
    advice = hints.advice(state, text, without_transaction=sql.read(file.text).transaction == "none")
    raise ResetFailed(f"{where}: {said} (SQLSTATE {state}){context}{text and f' in: {_shown(text)}'}", next=advice) from ran.error


def _shown(statement: str) -> str:
    text = " ".join(re.sub(_SHIELDED, r"\1'***'", statement).split())
    return text if len(text) <= _SHOWN else text[:_SHOWN] + " …"


_CLEAN = """CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; DEALLOCATE ALL; UNLISTEN *; SELECT pg_catalog.pg_advisory_unlock_all();
DISCARD PLANS; DISCARD TEMP; DISCARD SEQUENCES; """
"""What DISCARD ALL does, in a form that may share one string with what follows it."""
_ENCODING = "SET client_encoding = 'UTF8'; "
_FOR_NEW_SESSIONS = r"(?i)\bALTER\s+(?:DATABASE|ROLE|USER|SYSTEM)\b|\bLOAD\s+E?'"
"""What only a new session sees, or what a session never forgets."""
_CUSTOM_SETTING = r"(?i)\bset_config\s*\(\s*(?!'\w+'\s*,)|\bSET\s+(?:(?:SESSION|LOCAL)\s+)?\"?\w+\"?\."
"""Makes a setting with a dot in its name, of which a reset leaves an empty one behind."""


def _clean(connection: Connection) -> None:
    connection.execute(_CLEAN + _ENCODING + database.session_settings(connection.info.server_version))


class Sessions:
    """The sessions on one database that files run on; each file finds one that is new, or as good as new."""

    def __init__(self, owner: Dsn, maintenance: Dsn) -> None:
        self.owner, self.maintenance = owner, maintenance
        self._open: dict[bool, Connection] = {}
        self._used: set[bool] = set()
        self._always_renew = False

    def dsn(self, *, as_maintenance: bool) -> Dsn:
        """Return the DSN of the role that a stream runs as."""
        return self.maintenance if as_maintenance else self.owner

    def clean(self, *, as_maintenance: bool) -> Connection:
        """Return a session without anything that an earlier file left in it."""
        connection = self._open.get(as_maintenance)
        if connection is None:
            connection = database.connect(self.dsn(as_maintenance=as_maintenance), purpose="migrations")
            connection.prepare_threshold = None
            connection.execute(_ENCODING)
            self._open[as_maintenance] = connection
        elif as_maintenance in self._used:
            _clean(connection)
        self._used.discard(as_maintenance)
        return connection

    def used(self, text: str) -> None:
        """Say that `text` ran: sessions that could not be cleaned of it are closed."""
        self._used.update(self._open)
        self._always_renew = self._always_renew or re.search(_CUSTOM_SETTING, text) is not None
        if self._always_renew or re.search(_FOR_NEW_SESSIONS, text):
            self.close()

    def close(self) -> None:
        """Close every session."""
        while self._open:
            self._open.popitem()[1].close()
