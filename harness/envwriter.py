"""Write the lines of test/.env that are the bootstrap's, and keep every other byte."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from harness import process
from harness.envfile import WORKTREE, Line, lines_of, text_of, worktree_value
from harness.errors import StackFailure, UsageError
from harness.settings import BOOTSTRAP, ENV_FILE, ROLES, Settings, Stack, environment

_PLAIN = re.compile(r"[A-Za-z0-9_./:@%?=+,-]*")
"""What bash, python-dotenv, node, compose and docker read alike without quotes."""


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
    text = text_of(path) if path.exists() else ""
    old = lines_of(path, text, lines)
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
    if left and text and not text.endswith(("\n", "\r")):
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
    by_dotenv = {line.key: line.value for line in lines_of(path, text_of(draft), expected) if line.key in expected}
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
