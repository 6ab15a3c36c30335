"""Migration streams: what is to be applied, in which order, to which database, and what was applied already."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness import folders, settings, sql
from harness.errors import ResetFailed, UsageError
from harness.settings import Run, Settings, Stack, Stream
from harness.sql import File
from harness.targets import Dsn, parse_dsn

if TYPE_CHECKING:
    from harness import commands, ledger, scripts
    from harness.commands import Input
    from harness.database import Connection

    Streams = Mapping[str, str | os.PathLike[str]] | Iterable[Stream]

_KEY_FORMAT = 1
"""Part of every fingerprint: raise it when the same files would be applied with another effect."""
_LOCK = (0x70676861, 1)
"""The two keys of the advisory lock that two migrators of one database share: "pgha", and 1 for migrations."""
_LOCK_PAUSE = 0.05
_LOCK_SECONDS = 600.0


class Planned(NamedTuple):
    """One stream, read: its files, or its command's inputs (None: the fingerprint cannot know them)."""

    stream: Stream
    files: tuple[File, ...]
    inputs: tuple[Input, ...] | None


class Plan(NamedTuple):
    """All streams in order, read and checked without a server; `notices` are for the user to read."""

    settings: Settings
    streams: tuple[Planned, ...]
    notices: tuple[str, ...]


def plan(of: Settings) -> Plan:
    """Read every stream's files.

    Raises UsageError for what no server needs to be asked about: see `folders.read` and `commands.read_inputs`.
    """
    planned: list[Planned] = []
    notices: list[str] = []
    seen: dict[Path, str] = {}
    for stream in of.streams:
        if stream.command:
            from harness import commands

            planned.append(Planned(stream, (), commands.read_inputs(of.root, stream)))
            continue
        folder = of.root / stream.directory
        other = seen.setdefault(folder.resolve(), stream.name)
        if other != stream.name:
            raise UsageError(f"streams {other!r} and {stream.name!r} have the same folder {folder}", next="Give each its own.")
        found = folders.read(stream.name, folder)
        planned.append(Planned(stream, found.files, ()))
        notices += found.notices
    return Plan(of, tuple(planned), tuple(notices))


def extensions(of: Plan) -> dict[str, tuple[Path, int]]:
    """Return the extensions that the files ask for, each with the file and line that asks first."""
    found: dict[str, tuple[Path, int]] = {}
    for file in _files(of):
        for name, offset in sql.extensions(file.text):
            found.setdefault(name, (file.path, sql.locate(file.text, offset).line))
    return found


def check_extensions(of: Plan, connection: Connection) -> None:
    """Raise ResetFailed when the server of `connection` lacks an extension that the files ask for."""
    wanted = extensions(of)
    if not wanted:
        return
    from harness import hints

    rows = connection.execute("SELECT name::text FROM pg_available_extensions WHERE name = ANY(%s)", [list(wanted)])
    available = {row[0] for row in rows}
    for name, (path, line) in wanted.items():
        if name not in available:
            finding = f"{path}:{line} asks for the extension {name!r}, which this server lacks"
            raise ResetFailed(finding, next=hints.missing_extension(name, connection.info.server_version // 10000))


def fingerprint(of: Plan, context: Sequence[str]) -> str | None:
    """Return one hash of everything that decides what `apply` makes; None when a command's inputs are not known."""
    parts: list[object] = [_KEY_FORMAT, list(context)]
    for planned in of.streams:
        if planned.inputs is None:
            return None
        stream = planned.stream
        as_written = [list(stream.command), stream.variable, stream.scheme, list(of.settings.environment)] if stream.command else []
        files = [(file.name, file.sha256) for file in planned.files]
        parts.append([stream.name, stream.as_maintenance, as_written, files, list(planned.inputs)])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def apply(of: Plan, owner: Dsn, maintenance: Dsn, *, application: Dsn | None, shell: Mapping[str, str]) -> list[str]:
    """Bring the database that both DSNs name up to date; return what was applied, as `stream/file`.

    `owner` is the database's role, `maintenance` serves streams with `as = "maintenance"`. Raises ResetFailed when a file or
    a command fails, or something is pending afterwards; Refusal, before anything runs, when the ledger and the files differ.
    """
    from harness import commands, database, scripts

    sessions = scripts.Sessions(owner, maintenance)
    try:
        with database.failing_as(f"the migrations of database {owner.name!r} stopped"):
            return _apply(of, sessions, commands.Surroundings(of.settings, application, shell))
    finally:
        sessions.close()


def _apply(of: Plan, sessions: scripts.Sessions, surroundings: commands.Surroundings) -> list[str]:
    from harness import commands, ledger, scripts

    connection = sessions.clean(as_maintenance=False)
    start = ledger.read(connection)
    todo = pending(of, start)
    for file in todo:
        scripts.check(file)
    ledger.create(connection, sessions.maintenance.user if _shares_ledger(of, sessions) else None)
    applied = []
    for planned in of.streams:
        stream = planned.stream
        if stream.command:
            dsn = sessions.dsn(as_maintenance=stream.as_maintenance)
            if commands.run(surroundings, stream, planned.inputs, dsn, sessions.clean(as_maintenance=False), start):
                applied.append(stream.name)
            continue
        for file in planned.files:
            if file in todo:
                scripts.run(
                    sessions.clean(as_maintenance=stream.as_maintenance),
                    file,
                    ledger.row(file.stream, file.position, file.name, file.sha256),
                )
                sessions.used(file.text)
                applied.append(f"{file.stream}/{file.name}")
    rows = ledger.read(sessions.clean(as_maintenance=False)).rows
    left = [file for file in _files(of) if (file.stream, file.name) not in rows]
    if left:
        raise ResetFailed(
            f"{left[0].path} is still pending after it was applied", next="See which file takes rows out of pgharness.applied."
        )
    return applied


def pending(of: Plan, applied: ledger.Ledger) -> list[File]:
    """Return the files that are to be applied, in order.

    Raises Refusal when an applied file was edited, is missing, or a new file is ordered before an applied one.
    """
    from harness import ledger

    todo = []
    for planned in of.streams:
        if not planned.stream.command:
            todo += ledger.pending(planned.stream.name, planned.files, applied)
    return todo


def migrate(dsn: str, *, streams: Streams | None = None, root: str | os.PathLike[str] | None = None) -> list[str]:
    """Bring any database up to date; see `harness.migrate`."""
    from harness import database

    shell = settings.environment()
    found = _settings_for(streams, root, shell)
    of = plan(found)
    if of.notices:
        import logging

        for notice in of.notices:
            logging.getLogger("harness").warning("%s", notice)
    target = parse_dsn("the DSN given to harness.migrate", dsn)
    lock = database.connect(target, purpose="migrate lock")
    try:
        with database.failing_as(f"the lock on the migrations of {target.where} cannot be had"):
            _take_lock(lock, target)
        return apply(of, target, target, application=None, shell=shell)
    finally:
        lock.close()


def _take_lock(connection: Connection, target: Dsn) -> None:
    deadline = time.monotonic() + _LOCK_SECONDS
    while connection.execute("SELECT pg_try_advisory_lock(%s, %s)", _LOCK).fetchone() != (True,):
        if time.monotonic() > deadline:
            raise ResetFailed(f"{target.where} is being migrated by another session", next="Wait for it, or end it, and try again.")
        time.sleep(_LOCK_PAUSE)


def _settings_for(streams: Streams | None, root: str | os.PathLike[str] | None, shell: Mapping[str, str]) -> Settings:
    if streams is None:
        return settings.load(Path(root or shell.get("HARNESS_ROOT", "") or settings.find_root()))
    given = [Stream(name, str(folder)) for name, folder in streams.items()] if isinstance(streams, Mapping) else list(streams)
    base = Path(root) if root is not None else Path.cwd()
    return Settings(base.resolve(), (), tuple(given), (), (), Run(), Stack())


def _files(of: Plan) -> list[File]:
    return [file for planned in of.streams for file in planned.files]


def _shares_ledger(of: Plan, sessions: scripts.Sessions) -> bool:
    return sessions.owner.user != sessions.maintenance.user and any(planned.stream.as_maintenance for planned in of.streams)
