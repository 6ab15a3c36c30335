"""The files of an adopting repository: what each is to hold, and the writing of those that are not there yet."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from harness import requirements, settings
from harness.errors import UsageError
from harness.settings import BOOTSTRAP, ENV_FILE, FILE, Database, Package, Stream
from harness.survey import Found
from harness.terrain import Terrain

REQUIREMENTS = "test/bootstrap-requirements.txt"
_LINE = "from harness.tasks import *"
_IGNORED = ("/.venv/", f"/{ENV_FILE}", f"/{settings.Stack().directory}/")


class File(NamedTuple):
    """One file: `action` is "write" for a new one, "add" for lines to one that is there, "keep" for one left as it is."""

    path: str
    action: str
    text: str
    why: str = ""

    def line(self, *, is_done: bool) -> str:
        """Say what is done with it, or would be."""
        more = len(self.text.splitlines())
        done = {"write": ("is written", "would be written"), "add": (f"gets {more} more line{'s' * (more != 1)}",) * 2}
        what = done.get(self.action, ("stays as it is",) * 2)[not is_done]
        return f"{self.path} {what}{f': {self.why}' if self.why else ''}"

    @property
    def preview(self) -> str:
        """The text, indented; of a script its first comment alone."""
        lines = self.text.splitlines() if self.action != "keep" else []
        return "\n".join(f"    {line}".rstrip() for line in (lines[1:3] if self.path.endswith(".sh") else lines))


def files(terrain: Terrain, found: Found, source: str) -> tuple[File, ...]:
    """Return every file that the repository needs, in the order in which a reader meets them."""
    return (
        _new(terrain, FILE, lambda: harness_toml(found)),
        _tasks(terrain),
        _script(terrain),
        _requirements(terrain, found, source),
        _ignored(terrain),
    )


def write(root: Path, planned: Iterable[File]) -> None:
    """Write what is new and add what is missing; nothing that is there is changed otherwise. UsageError where that fails."""
    for file in planned:
        path = root / file.path
        try:
            if file.action == "write":
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("x", encoding="utf-8", newline="") as stream:
                    stream.write(file.text)
                if path.suffix == ".sh":
                    path.chmod(0o755)
            elif file.action == "add":
                path.write_text(_joined(path, file), encoding="utf-8", newline="")
        except OSError as error:
            raise UsageError(
                f"{path} cannot be written: {error.strerror}", next="Make it writable, then run `harness init` again."
            ) from error


def _joined(path: Path, file: File) -> str:
    with path.open(encoding="utf-8", newline="") as stream:
        before = stream.read()
    ending = "\r\n" if "\r\n" in before else "\n"
    added = file.text.replace("\n", ending)
    if path.suffix == ".py":
        lines = before.splitlines(keepends=True)
        at = _after_head(before)
        return "".join([*lines[:at], added, *lines[at:]])
    return before + (ending if before and not before.endswith("\n") else "") + added


def _after_head(code: str) -> int:
    """Return after which line of a module its own imports may begin: docstring and __future__ come first."""
    last = 0
    for node in ast.parse(code).body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if not is_docstring and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            break
        last = node.end_lineno or last
    return last


def _new(terrain: Terrain, path: str, text: Callable[[], str]) -> File:
    return File(path, "keep", "") if terrain.has(path) else File(path, "write", text())


def _requirements(terrain: Terrain, found: Found, source: str) -> File:
    file = _new(terrain, REQUIREMENTS, lambda: requirements.text(terrain, found, source))
    is_here_alone = file.action == "write" and "@ file://" in source
    return file._replace(why="only this machine has that pgharness; --source names another") if is_here_alone else file


def _script(terrain: Terrain) -> File:
    text = bootstrap()
    if not terrain.has(BOOTSTRAP):
        return File(BOOTSTRAP, "write", text)
    is_same = terrain.text(BOOTSTRAP) == text
    return File(BOOTSTRAP, "keep", "", "" if is_same else "it is not this version's; remove it and run `harness init` again to renew it")


def bootstrap() -> str:
    """Return the script test/bootstrap-stack.sh: from beside this module where it was installed, else from the source tree."""
    here = Path(__file__).resolve().parent
    for path in (here / Path(BOOTSTRAP).name, here.parent / BOOTSTRAP):
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise UsageError(f"this installation of the harness in {str(here)!r} lacks {Path(BOOTSTRAP).name}", next="Install pgharness again.")


def _tasks(terrain: Terrain) -> File:
    path = "tasks/__init__.py" if terrain.has("tasks/__init__.py") else "tasks.py"
    text = terrain.text(path)
    if not terrain.has(path):
        return File(path, "write", _LINE + "  # noqa: F403\n")
    if "harness.tasks" in text:
        return File(path, "keep", "")
    if not re.search(r"^\s*(from|import)\s+invoke\b", text, re.MULTILINE):
        return File(path, "keep", "", "it is not Invoke's; the tasks are there as `harness TASK`")
    try:
        names = {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
        has_collection = re.search(r"^(ns|namespace)\s*=", text, re.MULTILINE) is not None
    except SyntaxError as error:
        return File(path, "keep", "", f"its line {error.lineno} is no Python")
    if has_collection:
        return File(path, "keep", "", "it makes a collection of its own; the tasks are there as `harness TASK`")
    hidden = sorted(names & _own_names())
    why = f"its own {' and '.join(hidden)} hide{'s' * (len(hidden) == 1)} the harness's, which {'is' if len(hidden) == 1 else 'are'} `harness {hidden[0]}`"
    return File(path, "add", _LINE + "  # noqa: F403\n", why if hidden else "")


def _own_names() -> set[str]:
    """Return the names of the tasks, read from their module's text: it stands below this one."""
    tree = ast.parse((Path(__file__).parent / "tasks.py").read_text(encoding="utf-8"))
    lists = [node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
    return set(ast.literal_eval(lists[0])) if lists else set()


def _ignored(terrain: Terrain) -> File:
    there = {line.strip().strip("/").removeprefix("**/") for line in terrain.text(".gitignore").splitlines()}
    missing = [line for line in _IGNORED if line.strip("/") not in there and line.strip("/").rpartition("/")[2] not in there]
    if not missing:
        return File(".gitignore", "keep", "")
    return File(".gitignore", "add" if terrain.has(".gitignore") else "write", "".join(f"{line}\n" for line in missing))


def harness_toml(found: Found) -> str:
    """Return harness.toml for what was found; what cannot be known stands there as a comment to fill in."""
    parts = ["[databases]\n" + "".join(_database(database) for database in found.databases if database.role != "maintenance")]
    parts += [_stream(stream) for stream in found.streams]
    if not found.streams:
        parts.append(
            '# [[migrations]]\n# stream = "core"\n# directory = "migrations/core"  # or: command = ["alembic", "upgrade", "head"]\n'
        )
    parts.append("[packages]\n" + "".join(_packages(role, found.packages) for role in ("test", "e2e")))
    if found.environment:
        parts.append("[environment]\n" + "".join(f"{name} = {_quoted(value)}\n" for name, value in found.environment))
    version = re.search(r":\D*(\d+)", found.image)
    stack = ["createdb = true\n"] if found.createdb else []
    stack += [f"# major = {version[1]}  # {found.image}\n"] if version else []
    if stack:
        parts.append("[stack]\n" + "".join(stack))
    return "\n".join(parts)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _database(database: Database) -> str:
    default = next(one for one in settings.DEFAULT_DATABASES if one.role == database.role)
    if database.variable == default.variable:
        return f"{database.role} = {_quoted(database.name)}\n"
    return f"{database.role} = {{ name = {_quoted(database.name)}, variable = {_quoted(database.variable)} }}\n"


def _stream(stream: Stream) -> str:
    default = Stream("")
    lines = [f"stream = {_quoted(stream.name)}"]
    lines += [f"directory = {_quoted(stream.directory)}"] if stream.directory else [f"command = {json.dumps(stream.command)}"]
    lines += [f"variable = {_quoted(stream.variable)}"] if stream.variable != default.variable else []
    lines += [f"url = {_quoted(stream.scheme)}"] if stream.scheme != default.scheme else []
    lines += [f"inputs = {json.dumps(stream.inputs, ensure_ascii=False)}"] if stream.inputs else []
    return "[[migrations]]\n" + "".join(f"{line}\n" for line in lines)


def _packages(role: str, packages: Iterable[Package]) -> str:
    entries = [
        f"{{ name = {_quoted(package.name)}, path = {_quoted(package.path)}, command = {json.dumps(package.command)} }}"
        if package.command
        else _quoted(package.path)
        for package in packages
        if package.role == role
    ]
    if role == "e2e" and not entries:
        return ""
    if len(entries) > 1:
        return f"{role} = [\n" + "".join(f"  {entry},\n" for entry in entries) + "]\n"
    return f"{role} = [{', '.join(entries)}]\n"
