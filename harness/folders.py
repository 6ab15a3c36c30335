"""The folders of SQL streams: which files count, in which order, and what is refused. Asks no server."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import NamedTuple

from harness.errors import UsageError
from harness.sql import File

_NUMBERED = r"(?s)([0-9]+).*"
_VERSIONED = r"(?s)V([0-9]+(?:[._][0-9]+)*)__.*"
_DOWN = r"(?is)[0-9]+.*\.down\.sql|U[0-9]+(?:[._][0-9]+)*__.*\.sql"


class Folder(NamedTuple):
    """A stream's files in order, and what was skipped aloud."""

    files: tuple[File, ...]
    notices: tuple[str, ...]


def read(stream: str, folder: Path) -> Folder:
    """Read a stream's folder.

    Raises UsageError for a missing folder, a folder in it, an .sql file without a number, two files with one number, and
    a file that is not UTF-8.
    """
    try:
        with os.scandir(folder) as entries:
            found = sorted((entry.name, entry.is_dir()) for entry in entries)
    except OSError as error:
        finding = f"stream {stream!r}: {folder} cannot be read: {error.strerror}"
        raise UsageError(finding, next="Give the stream the path of its folder as directory.") from None
    numbers: dict[tuple[int, ...], str] = {}
    notices = []
    for name, is_folder in found:
        skipped = _why_skipped(name, is_folder=is_folder)
        if skipped:
            notices.append(f"stream {stream!r}: {folder / name} is skipped: {skipped}")
        elif skipped is None:
            number = _number(stream, folder, name, is_folder=is_folder)
            if number in numbers:
                finding = f"stream {stream!r}: {numbers[number]} and {name} in {folder} have the same number"
                raise UsageError(finding, next="Give one of them a number of its own.")
            numbers[number] = name
    ordered = [numbers[number] for number in sorted(numbers)]
    if not ordered:
        notices.append(f"stream {stream!r}: {folder} has no migration files")
    return Folder(tuple(_file(stream, position, folder / name) for position, name in enumerate(ordered, 1)), tuple(notices))


def _why_skipped(name: str, *, is_folder: bool) -> str | None:
    """Return why an entry is skipped, "" when that needs no word, None when it counts."""
    like_sql = ".sql" in name.lower()
    is_sql = name.lower().endswith(".sql")
    if name.startswith((".", "#")):
        return "an editor's leftover" if like_sql else ""
    if is_folder:
        return "" if name == "__pycache__" else None
    if re.fullmatch(_DOWN, name):
        return "it leads down"
    if is_sql:
        return None
    if like_sql:
        return "an editor's leftover or a copy: its name does not end in .sql"
    return "its name does not end in .sql" if re.fullmatch(_NUMBERED, name) else ""


def _number(stream: str, folder: Path, name: str, *, is_folder: bool) -> tuple[int, ...]:
    if is_folder:
        raise UsageError(f"stream {stream!r}: {folder / name} is a folder", next="Move it out: a stream's files lie in one folder.")
    match = re.fullmatch(_NUMBERED, name)
    if match:
        return (int(match[1]),)
    match = re.fullmatch(_VERSIONED, name)
    if match is None:
        raise UsageError(f"stream {stream!r}: {folder / name} has no number", next="Name it NNNN_name.sql, or move it out of the folder.")
    parts = [int(part) for part in re.split("[._]", match[1])]
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return tuple(parts)


def _file(stream: str, position: int, path: Path) -> File:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123  # hundreds of them
            content = file.read()
    except OSError as error:
        raise UsageError(f"stream {stream!r}: {path} cannot be read: {error.strerror}", next="Make it a readable file.") from None
    try:
        text = content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        finding = f"stream {stream!r}: {path} is not UTF-8 (byte {error.start}: 0x{content[error.start]:02x})"
        raise UsageError(finding, next="Save it as UTF-8.") from None
    if "\0" in text:
        finding = f"stream {stream!r}: {path} has a zero byte (byte {content.index(0)}), as UTF-16 has"
        raise UsageError(finding, next="Save it as UTF-8.")
    return File(stream, position, path.name, path, hashlib.sha256(content).hexdigest(), text)
