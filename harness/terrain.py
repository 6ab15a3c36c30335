"""A repository's files as they are: found in bounded time, read as text; nothing is run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from harness import settings

_DEPTH = 7
_MOST = 20_000
_LARGEST = 400_000
_PASSED_OVER = ("node_modules", "__pycache__", "site-packages", "build", "dist", "target", "venv", "env")
_MARKS = (settings.FILE, ".git", "pyproject.toml", "setup.py", "setup.cfg", "manage.py", "package.json", "go.mod", "Cargo.toml", "tasks.py")


def top(start: Path) -> Path:
    """Return the nearest folder, from `start` up to the worktree's top, that looks like a project's; else `start`."""
    for folder in (start, *start.parents):
        if any((folder / mark).exists() for mark in _MARKS):
            return folder
    return start


class Terrain:
    """The files of a project, by their paths from its top; what another worktree, tool or build put there is passed over."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The paths, in order, a folder's own files before its folders'."""
        found: list[str] = []
        for path in self._walk():
            found.append(path)
            if len(found) == _MOST:
                break
        return tuple(sorted(found, key=lambda path: (path.count("/"), path)))

    def _walk(self) -> Iterator[str]:
        for folder, folders, names in os.walk(self.root):
            here = Path(folder).relative_to(self.root)
            deep = len(here.parts) >= _DEPTH
            folders[:] = [] if deep else [name for name in sorted(folders) if not self._is_passed_over(Path(folder, name))]
            yield from ((here / name).as_posix() for name in sorted(names))

    def _is_passed_over(self, folder: Path) -> bool:
        if folder.name.startswith(".") or folder.name in _PASSED_OVER or folder.name.endswith(".egg-info"):
            return True
        return any((folder / mark).exists() for mark in (".git", "pyvenv.cfg"))

    def has(self, path: str) -> bool:
        """Say whether there is such a file or folder."""
        return (self.root / path).exists()

    def text(self, path: str) -> str:
        """Return a file's text, whatever its encoding; empty for one that is not there, cannot be read, or is no text's size."""
        file = self.root / path
        try:
            return file.read_text(encoding="utf-8", errors="replace") if file.is_file() and file.stat().st_size < _LARGEST else ""
        except OSError:
            return ""

    @cached_property
    def project(self) -> dict[str, Any]:
        """What pyproject.toml says; UsageError where it is broken."""
        return settings.toml(self.root / "pyproject.toml") if self.has("pyproject.toml") else {}

    def at(self, *keys: str) -> Any:
        """Return what pyproject.toml has at a dotted place, None for nothing."""
        value: Any = self.project
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    @cached_property
    def requirements(self) -> str:
        """What the project says of its dependencies, as one text to look for names in."""
        names = [name for name in self.files if re.fullmatch(r"([\w-]*requirements[\w-]*\.(txt|in)|requirements/[\w-]+\.(txt|in))", name)]
        return "\n".join(self.text(name).lower() for name in ("pyproject.toml", "setup.py", "setup.cfg", "tox.ini", "Pipfile", *names))

    def needs(self, package: str) -> bool:
        """Say whether the project asks for a Python package, extras and versions aside."""
        return re.search(rf"(?<![\w.-]){re.escape(package)}(?![\w.-])", self.requirements) is not None

    @cached_property
    def name(self) -> str:
        """The project's name as a database's."""
        found = re.search(r'"name"\s*:\s*"(?:@[^/"]*/)?([^"]+)"', self.text("package.json"))
        name = self.at("project", "name") or self.at("tool", "poetry", "name") or (found[1] if found else self.root.name)
        plain = re.sub(r"[^a-z0-9]+", "_", str(name).lower()).strip("_")[:40]
        return f"app_{plain}".rstrip("_") if not re.match(r"(?!pg_)[a-z]", plain) else plain
