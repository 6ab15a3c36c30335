"""Command streams: another migration tool's command, given the target by environment, and proof that it acted on it."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness import database, ledger, process, schema
from harness.errors import HarnessError, ResetFailed, UsageError, redact
from harness.settings import Settings, Stream
from harness.targets import HIDDEN, Dsn, parse_dsn

if TYPE_CHECKING:
    from harness.database import Connection

_OUTPUT = 2000
"""Characters of a failed command's output that are shown: the last ones."""
_PLACEHOLDER = r"\{(?:url(?::([A-Za-z][A-Za-z0-9+.-]*))?|(host|port|user|password|name))\}"


class Input(NamedTuple):
    """A file that a command reads: its path from the root, and its content's hash."""

    path: str
    sha256: str


class Surroundings(NamedTuple):
    """What a command runs in: the settings, the application's database to watch, and the shell's environment."""

    settings: Settings
    application: Dsn | None
    shell: Mapping[str, str]


def read_inputs(root: Path, stream: Stream) -> tuple[Input, ...] | None:
    """Return the files that a command's `inputs` match, in order of their paths; None when it names none.

    Raises UsageError for a pattern that matches no file.
    """
    if not stream.inputs:
        return None
    found: dict[str, Path] = {}
    for pattern in stream.inputs:
        paths = [path for path in glob.glob(pattern, root_dir=root, recursive=True) if "__pycache__" not in Path(path).parts]  # noqa: PTH207  # pathlib's glob takes no absolute pattern
        files = {path: root / path for path in paths if (root / path).is_file()}
        if not files:
            raise UsageError(f"stream {stream.name!r}: its input {pattern!r} matches no file in {root}", next="Mend the pattern.")
        found |= files
    try:
        return tuple(Input(path, hashlib.sha256(found[path].read_bytes()).hexdigest()) for path in sorted(found))
    except OSError as error:
        raise UsageError(
            f"stream {stream.name!r}: its input {error.filename} cannot be read: {error.strerror}", next="Make it readable."
        ) from None


def expand(value: str, dsn: Dsn) -> str:
    """Fill the placeholders of [environment] from a DSN; all other braces stay as they are."""

    def fill(match: re.Match[str]) -> str:
        if match[2]:
            return str(getattr(dsn, match[2])) if match[2] != "host" else dsn.host or dsn.hostaddr
        return dsn.url(match[1] or "postgresql")

    return re.sub(_PLACEHOLDER, fill, value)


def environment(surroundings: Surroundings, stream: Stream, dsn: Dsn) -> dict[str, str]:
    """Return a command's environment: the target's DSN, nothing of libpq's or git's, and no way to the application."""
    of = surroundings.settings
    env = {name: value for name, value in surroundings.shell.items() if not name.startswith(("PG", "GIT_"))}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
    for role in of.databases:
        if role.role == "application":
            env[role.variable] = HIDDEN
        else:
            env.pop(role.variable, None)
    application = surroundings.application
    if application is not None:
        env |= {name: HIDDEN for name, value in env.items() if _leads_to(value, application)}
    env[stream.variable] = dsn.url(stream.scheme)
    env |= {name: expand(value, dsn) for name, value in of.environment}
    for name, value in of.environment:
        if application is not None and _leads_to(expand(value, dsn), application):
            finding = f"harness.toml: [environment] {name} leads to the application's database {application.where}"
            raise UsageError(finding, next='Write it with the placeholders, such as "{url}": they stand for the database at work.')
    return env


def _leads_to(value: str, application: Dsn) -> bool:
    """Say whether a variable's value is a connection string of the application's database."""
    scheme, separator, rest = value.partition("://")
    if not separator or not scheme.startswith("postgres"):
        return False
    try:
        found = parse_dsn("", f"postgresql://{rest}")
    except HarnessError:
        return value == application.text
    return (found.endpoint, found.name) == (application.endpoint, application.name)


def run(
    surroundings: Surroundings, stream: Stream, inputs: tuple[Input, ...] | None, dsn: Dsn, connection: Connection, before: ledger.Ledger
) -> bool:
    """Run a stream's command on the database that `dsn` and `connection` open; return whether it changed it.

    Raises ResetFailed when the command fails or takes too long, when the application's schema changed meanwhile, and when
    the target stayed as it was although nothing says that it was current.
    """
    env = environment(surroundings, stream, dsn)
    application = _describe_application(surroundings.application)
    old, watermark = schema.describe(connection), schema.watermark(connection)
    _run(surroundings.settings.root, stream, env)
    changed = schema.describe(connection) != old or schema.has_new_rows(connection, watermark)
    row = (stream.name, shlex.join(stream.command))
    was_current = row in before.rows or (before.lived and not before.exists)
    _check_application(surroundings.application, application, stream, changed=changed)
    if not changed and not was_current:
        finding = f"stream {stream.name!r}: {row[1]!r} said success, but left the database {dsn.name!r} unchanged"
        raise ResetFailed(
            finding, next=f"Let the tool take its database from {stream.variable}: does it read a .env or a settings file of its own?"
        )
    if changed or row not in before.rows:
        digest = hashlib.sha256(repr((stream.command, inputs)).encode()).hexdigest()
        with database.failing_as("the ledger of applied migrations cannot be written"):
            connection.execute(ledger.row(row[0], 0, row[1], digest))
    return changed


def _run(root: Path, stream: Stream, env: Mapping[str, str]) -> None:
    shown = f"stream {stream.name!r}: {shlex.join(stream.command)!r}"
    try:
        done = process.run(stream.command, env=env, cwd=root, timeout=stream.timeout)
    except OSError as error:
        raise ResetFailed(
            f"{shown} cannot be started: {error.strerror}", next="Install the tool, or mend the command in harness.toml."
        ) from None
    output = redact(" | ".join(line for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()))[-_OUTPUT:]
    said = f", and said: {output}" if output else " without a word"
    if done.timed_out:
        raise ResetFailed(
            f"{shown} took longer than {stream.timeout:g} s{said}", next="Mend it, or raise the stream's timeout in harness.toml."
        )
    if done.returncode:
        raise ResetFailed(f"{shown} exited {done.returncode}{said}", next="Mend what it says and run the command again.")


def _describe_application(application: Dsn | None) -> tuple[str, ...] | None:
    """Return the schema of the application's database; None where it cannot be reached, which is no fault here."""
    if application is None:
        return None
    try:
        connection = database.connect(application, purpose="watch")
    except HarnessError:
        return None
    try:
        connection.read_only = True
        return schema.describe(connection)
    finally:
        connection.close()


def _check_application(application: Dsn | None, old: tuple[str, ...] | None, stream: Stream, *, changed: bool) -> None:
    if application is None or old is None:
        return
    new = _describe_application(application)
    if new is None or new == old:
        return
    besides = "" if changed else ", and left the test database unchanged"
    finding = f"stream {stream.name!r}: {shlex.join(stream.command)!r} changed the application's database {application.name!r}{besides}"
    raise ResetFailed(
        finding, next=f"Let the tool take its database from {stream.variable}: does it read a .env or a settings file of its own?"
    )
