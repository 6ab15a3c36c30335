"""test/.env: read it, prove whose it is, and write the lines that are the bootstrap's."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from harness import process
from harness.errors import StackFailure, UsageError
from harness.settings import BOOTSTRAP, ENV_FILE, ROLES, Settings, Stack, environment
from harness.targets import HIDDEN, Dsn, parse_dsn

WORKTREE = "HARNESS_WORKTREE"
_RUN = f"Run {BOOTSTRAP}."
_PLAIN = re.compile(r"[A-Za-z0-9_./:@%?=+,-]*")
"""What bash, python-dotenv, node, compose and docker read alike without quotes."""
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
    text = _text(path)
    if not text.strip():
        raise UsageError(f"{path} is empty", next=_RUN)
    values = {line.key: line.value for line in _lines(path, text, owned(settings)) if line.key and line.value}
    _prove_ours(path, values.get(WORKTREE), settings.root)
    variables = {database.role: database.variable for database in settings.databases}
    dsns = {role: parse_dsn(variable, values[variable]) for role, variable in variables.items() if variable in values}
    application = _shell_application(variables["application"], dsns.get("application"), shell)
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


def _text(path: Path) -> str:
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


def _lines(path: Path, text: str, variables: Iterable[str]) -> list[Line]:
    """Parse the file; an unreadable line and a variable of ours that stands twice are errors."""
    import io

    from dotenv.parser import parse_stream

    lines: list[Line] = []
    seen: dict[str, int] = {}
    for binding in parse_stream(io.StringIO(text, newline="")):
        body = binding.original.string.lstrip()
        before = binding.original.string[: len(binding.original.string) - len(body)]
        number = binding.original.line + len(re.findall(r"\r\n|\n|\r", before))
        if binding.error:
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
    return parse_dsn(variable, plain)


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


def write(
    settings: Settings,
    values: Mapping[str, str],
    *,
    force: bool,
    written: Mapping[str, str],
    former: str = "",
) -> dict[str, str]:
    """Write the bootstrap's lines, one DSN per role of `values`, and return what `written` must be the next time.

    `written` holds the digests of the last time, `former` the worktree that these lines were made for before a move.
    Every other line is kept byte for byte, and the file is the old one until the new one is complete and was read back.
    Raises UsageError naming a line that was changed by hand, unless `force`.
    """
    path = settings.root / ENV_FILE
    lines = _new_lines(settings, values)
    text = _text(path) if path.exists() else ""
    old = _lines(path, text, lines)
    if not force:
        _refuse_changed(path, old, lines, written, former or str(settings.root))
    content = _merge(old, lines)
    if content != text or path.is_symlink() or path.stat().st_mode & 0o077:
        _install(path, _folder_for_draft(settings) / "env.new", content, {name: _value(name, line) for name, line in lines.items()})
    return {name: digest(line) for name, line in lines.items()}


def digest(line: str) -> str:
    """Return what tells a line changed by hand, without the password in it."""
    import hashlib

    return hashlib.sha256(line.encode()).hexdigest()[:32]


def _new_lines(settings: Settings, values: Mapping[str, str]) -> dict[str, str]:
    variables = {database.role: database.variable for database in settings.databases}
    lines = {variables[role]: f"{variables[role]}={_quoted(values[role])}" for role in ROLES if role in values and role in variables}
    return {**lines, WORKTREE: f"{WORKTREE}={worktree_value(settings.root)}"}


def _quoted(value: str) -> str:
    """Return the value as every reader takes it: plain, or in single quotes for what a URL cannot say otherwise."""
    from urllib.parse import quote

    kept = re.sub(r"[^A-Za-z0-9_./:@%?=+,&\[\]-]", lambda match: quote(match[0], safe="").replace("~", "%7E"), value)
    return kept if _PLAIN.fullmatch(kept) else f"'{kept}'"


def _value(name: str, line: str) -> str:
    return line[len(name) + 1 :].strip("'")


def _refuse_changed(path: Path, old: list[Line], new: Mapping[str, str], written: Mapping[str, str], former: str) -> None:
    """Raise for a line of ours that neither we wrote nor another worktree's bootstrap."""
    present = {line.key: line for line in old if line.key in new}
    changed = [
        line
        for key, line in present.items()
        if key and digest(f"{key}={_quoted(line.value or '')}") != written.get(key) and line.value != _value(key, new[key])
    ]
    stamp = present.get(WORKTREE)
    if stamp is not None and stamp in changed and stamp.value == worktree_value(Path(former)):
        changed.remove(stamp)
    is_foreign = stamp is not None and stamp in changed
    if is_foreign and (len(changed) == len(present) or not written):
        return  # copied along from another worktree, as agents and editors do: nobody's hand changed it
    for line in changed:
        raise UsageError(
            f"{path}, line {line.number}: {line.key} was changed by hand", next=f"Put it back, or run {BOOTSTRAP} --force to overwrite it."
        )


def _merge(old: list[Line], new: Mapping[str, str]) -> str:
    left = dict(new)
    parts = []
    for line in old:
        if line.key in left:
            wanted = left.pop(line.key)
            same = (line.value or "") == _value(line.key, wanted) and line.text.rstrip("\n") == wanted
            parts.append(line.before + (line.text if same else wanted + "\n"))
        else:
            parts.append(line.before + line.text)
    text = "".join(parts)
    if text and not text.endswith(("\n", "\r")):
        text += "\n"
    return text + "".join(f"{line}\n" for line in left.values())


def _folder_for_draft(settings: Settings) -> Path:
    """Return an ignored folder on the file's own disk, so that a killed bootstrap leaves nothing for git to see."""
    folder = settings.root / Stack().directory
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return folder if folder.stat().st_dev == folder.parent.stat().st_dev else folder.parent
    except OSError as error:
        raise StackFailure(f"{folder} cannot be made: {error.strerror}", next="Mend the rights of its parent folder.") from error


def _install(path: Path, draft: Path, content: str, expected: Mapping[str, str]) -> None:
    """Write the draft, read it back with bash and python-dotenv, then replace the file in one step."""
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8", newline="") as stream:
            stream.write(content)
        _read_back(path, draft, content, expected)
        draft.replace(path)
    except OSError as error:
        what = "No space left on device" if error.errno == errno.ENOSPC else error.strerror
        raise StackFailure(
            f"{path} cannot be written: {what}", next="Make room or mend its folder's rights; the old file is as it was."
        ) from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _read_back(path: Path, draft: Path, content: str, expected: Mapping[str, str]) -> None:
    by_dotenv = {line.key: line.value for line in _lines(path, _text(draft), expected) if line.key in expected}
    by_bash = _read_with_bash(path.parent, content, list(expected))
    for name, value in expected.items():
        for reader, found in (("python-dotenv", by_dotenv), ("bash", by_bash)):
            if found.get(name) != value:
                raise UsageError(
                    f"{path}: {reader} would not read {name} as it is written, because of another line",
                    next="Mend the quotes of your own lines.",
                )


def _read_with_bash(folder: Path, content: str, names: list[str]) -> dict[str, str | None]:
    """Source the file in a restricted shell without a PATH, so that no line of the user's can run a program."""
    import shutil

    bash = shutil.which("bash", path=environment().get("PATH", os.defpath)) or "/bin/bash"
    wanted = " ".join(f'"${{{name}-}}"' for name in names)
    script = f"set +u\n{content}\nprintf '%s\\0' {wanted}\n"
    try:
        done = process.run(
            [bash, "--norc", "--noprofile", "--restricted", "-s"], env={"PATH": ""}, cwd=folder, timeout=20, input=script.encode()
        )
    except OSError as error:
        raise StackFailure(f"bash cannot be started: {error.strerror}", next="Install bash.") from error
    found = done.stdout.split("\0")[-len(names) - 1 : -1]
    return dict(zip(names, found, strict=False))
