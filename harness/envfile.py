"""test/.env: read it, and prove whose it is."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from harness.errors import UsageError
from harness.settings import BOOTSTRAP, ENV_FILE, ROLES, Settings
from harness.targets import HIDDEN, Dsn, check_parameters, parse_dsn

WORKTREE = "HARNESS_WORKTREE"
_RUN = f"Run {BOOTSTRAP}."
_SCHEME = re.compile(r"(?P<base>[A-Za-z][A-Za-z0-9]*)(?:\+[A-Za-z0-9_.+-]+)?://(?P<rest>.*)", re.DOTALL)


class Env(NamedTuple):
    """What test/.env says: the DSNs by role, and where the shell says otherwise."""

    path: Path
    dsns: dict[str, Dsn]
    shell_application: Dsn | None
    warnings: tuple[str, ...]
    variables: dict[str, str] = {}  # noqa: RUF012  # never changed, and a NamedTuple has no factories

    def dsn(self, role: str) -> Dsn:
        """Return the DSN of `role`; UsageError naming variable and file when there is none."""
        if role not in self.dsns:
            raise UsageError(f"{self.path} has no {self.variables.get(role, role)}", next=_RUN)
        return self.dsns[role]


class Line(NamedTuple):
    """One binding of the file: the text before it, its own text, and where it stands."""

    key: str | None
    value: str | None
    before: str
    text: str
    number: int


def load(settings: Settings, shell: Mapping[str, str]) -> Env:
    """Return what `settings.root`'s test/.env says; the file beats `shell`, and a difference is a warning.

    Raises UsageError for a file that is missing, unreadable, broken, or made for another worktree.
    """
    path = settings.root / ENV_FILE
    text = text_of(path)
    if not text.strip():
        raise UsageError(f"{path} is empty", next=_RUN)
    values = {line.key: line.value for line in lines_of(path, text, owned(settings)) if line.key and line.value}
    _prove_ours(path, values.get(WORKTREE), settings.root)
    variables = {database.role: database.variable for database in settings.databases}
    dsns = {role: parse_dsn(variable, values[variable]) for role, variable in variables.items() if variable in values}
    application = _shell_application(variables["application"], dsns.get("application"), shell)
    for dsn in (*dsns.values(), *([application] if application else [])):
        check_parameters(dsn)
    warnings = [_difference(dsn, shell.get(dsn.variable, "")) for role, dsn in dsns.items() if role != "application"]
    if application and "application" in dsns:
        warnings.insert(0, _differs(dsns["application"], application.where))
    return Env(path, dsns, application, tuple(line for line in warnings if line), variables)


def owned(settings: Settings) -> tuple[str, ...]:
    """Return the variables of the bootstrap's own lines, in the file's order."""
    by_role = {database.role: database.variable for database in settings.databases}
    return (*(by_role[role] for role in ROLES if role in by_role), WORKTREE)


def worktree_value(root: Path) -> str:
    """Return `root` as HARNESS_WORKTREE says it: percent-encoded, so that every reader takes it without quotes."""
    from urllib.parse import quote

    return quote(os.fsencode(root), safe="/").replace("~", "%7E")


def text_of(path: Path) -> str:
    """Return the file's text; UsageError, each fault by its own sentence, when there is none that can be read."""
    if not os.path.lexists(path):
        raise UsageError(f"there is no {path}", next=_RUN)
    if path.is_symlink() and not path.exists():
        raise UsageError(f"{path} is a link to {str(path.readlink())!r}, which does not exist", next=f"Remove the link. {_RUN}")
    try:
        data = path.read_bytes()
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder", next=f"Remove the folder. {_RUN}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", next="Make it a file that you may read.") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = len(re.findall(rb"\r\n|\n|\r", data[: error.start])) + 1
        raise UsageError(f"{path} is not UTF-8: line {number} has the byte 0x{data[error.start]:02x}", next="Save it as UTF-8.") from None


def lines_of(path: Path, text: str, variables: Iterable[str]) -> list[Line]:
    """Parse the file; an unreadable line and a variable of ours that stands twice are errors."""
    import io

    from dotenv.parser import parse_stream

    lines: list[Line] = []
    seen: dict[str, int] = {}
    for binding in parse_stream(io.StringIO(text, newline="")):
        body = binding.original.string.lstrip()
        before = binding.original.string[: len(binding.original.string) - len(body)]
        number = binding.original.line + len(re.findall(r"\r\n|\n|\r", before))
        if binding.error or (binding.key and binding.value is None) or "\0" in body:
            raise UsageError(f"{path}, line {number}, is not NAME=value", next="Mend its quotes or its name, or remove it.")
        if binding.key in seen and binding.key in variables:
            raise UsageError(f"{path} has {binding.key} twice, in lines {seen[binding.key]} and {number}", next="Remove one of them.")
        if binding.key:
            seen[binding.key] = number
        lines.append(Line(binding.key, binding.value, before, body, number))
    return lines


def _prove_ours(path: Path, value: str | None, root: Path) -> None:
    from urllib.parse import unquote_to_bytes

    if not value:
        raise UsageError(f"{path} does not say which worktree it was made for ({WORKTREE})", next=_RUN)
    worktree = os.fsdecode(unquote_to_bytes(value))
    if worktree != str(root) and not _is_same(worktree, root):
        raise UsageError(f"{path} was made for the worktree {worktree!r}, and this one is {str(root)!r}", next=_RUN)


def _is_same(path: str, root: Path) -> bool:
    try:
        return root.samefile(path)  # one folder under two spellings, as on a case-insensitive disk
    except (OSError, ValueError):
        return False


def _shell_application(variable: str, dsn: Dsn | None, shell: Mapping[str, str]) -> Dsn | None:
    """Return the database that the shell calls the application's, where it is not the file's."""
    text = shell.get(variable, "")
    if not text or text == HIDDEN or (dsn and text == dsn.text):
        return None
    plain = _without_driver(text)
    if plain is None or (dsn and plain == dsn.text):
        return None
    return parse_dsn(f"{variable} in the shell", plain)


def _without_driver(text: str) -> str | None:
    """Return the URL without a `+driver` in its scheme; None when it is not PostgreSQL's."""
    match = _SCHEME.match(text)
    if match is None:
        return text
    if match["base"].lower() not in ("postgresql", "postgres", "postgis", "pgsql"):
        return None
    return f"postgresql://{match['rest']}"


def _difference(dsn: Dsn, text: str) -> str:
    if not text or text == dsn.text:
        return ""
    try:
        where = parse_dsn(dsn.variable, _without_driver(text) or "").where
    except UsageError:
        where = "not a PostgreSQL connection string"
    return _differs(dsn, where)


def _differs(dsn: Dsn, where: str) -> str:
    return f"{dsn.variable} in the shell ({where}) is not {ENV_FILE}'s ({dsn.where}); the file counts."
