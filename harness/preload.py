"""What the warm interpreter imports once, and whether its children are then what fresh interpreters would be.

Loaded by its path, as the interpreter itself: it imports nothing of the worktree.
"""

from __future__ import annotations

import importlib.metadata
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

OURS = ("harness.bytecode", "harness.errors", "harness.outcomes", "harness.settings", "harness.targets")
"""What our plugin imports; itself it reads its package's environment."""

LATE = ("faulthandler", "pdb")
"""What every pytest imports in the course of its session."""

ROOT = Path.cwd()
SETTINGS = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
NAMES_A_PLUGIN = re.compile(r"""(?<![\w-])-p(?![\s"',=]*no:(?!harness))""")
"""pytest's option that imports a module before any conftest, or keeps our own plugin out."""


class Unfit(Exception):
    """Why a forked child would not be what a fresh interpreter is."""


class Imported(NamedTuple):
    """What importing did that every package's own interpreter would have done for itself."""

    said: list[tuple[str, str]]
    """What was written to sys.stdout and sys.stderr."""
    generators: list[random.Random]
    """Random generators that were seeded by the system."""
    left: list[str]
    """Plugins that each child imports itself."""


class Remembered(importlib.metadata.PathDistribution):
    """A distribution that is read once: every pytest asks each of them four times."""

    metadata = cached_property(importlib.metadata.PathDistribution.metadata.fget)  # type: ignore[attr-defined]  # a property's function
    entry_points = cached_property(importlib.metadata.PathDistribution.entry_points.fget)  # type: ignore[attr-defined]  # as above
    files = cached_property(importlib.metadata.PathDistribution.files.fget)  # type: ignore[attr-defined]  # as above


@contextmanager
def recording() -> Iterator[Imported]:
    """Record what is written, instead of showing it, and who is seeded by chance."""
    found = Imported([], [], [])
    seed = random.Random.seed

    def recorded(self: random.Random, *arguments: Any, **named: Any) -> None:
        seed(self, *arguments, **named)
        found.generators[:] = [each for each in found.generators if each is not self]
        if not named and arguments in {(), (None,)}:
            found.generators.append(self)

    def writer(name: str) -> Callable[[str], int]:
        def write(text: str) -> int:
            found.said.append((name, text))
            return len(text)

        return write

    # Wrapped, and not replaced: a plugin may ask a stream whether it is a terminal.
    streams: dict[str, Any] = {"stdout": sys.stdout, "stderr": sys.stderr}
    for name, stream in streams.items():
        stream.write = writer(name)
    random.Random.seed = recorded  # type: ignore[method-assign]  # for the time of the imports
    try:
        yield found
    finally:
        random.Random.seed = seed  # type: ignore[method-assign]  # as above
        for stream in streams.values():
            del stream.write


def import_all(arguments: list[str], left: list[str]) -> None:
    """Import pytest, the plugins that it would load by itself, and psycopg, their assertions rewritten as pytest does."""
    from _pytest.assertion import install_importhook
    from _pytest.config import get_config

    for name in LATE:
        importlib.import_module(name)
    remember_distributions()
    config = get_config()
    hook = install_importhook(config)
    writes_no_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, False  # rewritten plugins are not compiled by an installer
    try:
        plugins = [] if is_autoload_off(arguments) else list(find_plugins(hook, settings_text(arguments), left))
        for point in plugins:
            load(point)
        if any(point.name == "hypothesispytest" for point in plugins):
            import hypothesis  # noqa: F401  # its plugin imports it at the latest for its summary
        if not is_of_worktree("harness"):
            hook.mark_rewrite("harness")
            for name in OURS:
                importlib.import_module(name)
    finally:
        sys.dont_write_bytecode = writes_no_bytecode
        sys.meta_path.remove(hook)
        config._ensure_unconfigure()  # noqa: SLF001  # pytest's own way to end a config that was never used
    if not is_of_worktree("psycopg"):
        try:
            import psycopg  # noqa: F401
        except ImportError:
            return  # there is none, or no libpq: a test that asks for it will be told


def find_plugins(hook: Any, settings: str, left: list[str]) -> Iterator[importlib.metadata.EntryPoint]:
    """Mark and return the plugins of all distributions; not ours, nor what was switched off, nor, `left`, what may be edited between two runs."""
    from _pytest.config import _iter_rewritable_modules

    for distribution in importlib.metadata.distributions():
        points = [point for point in distribution.entry_points if point.group == "pytest11"]
        names = list(_iter_rewritable_modules(str(file) for file in distribution.files or [])) if points else []
        is_editable = not names
        if any(point.value.startswith("harness.") for point in points):
            continue
        if is_editable or any(is_of_worktree(point.module) for point in points):
            left += [point.name for point in points]
            continue
        hook.mark_rewrite(*names)
        yield from (point for point in points if f"no:{point.name}" not in settings)


def load(point: importlib.metadata.EntryPoint) -> None:
    """Import a plugin; raises Unfit when it cannot be."""
    try:
        point.load()
    except BaseException as error:
        raise Unfit(f"plugin {point.name!r} cannot be imported: {error!r}") from error


def settings_text(arguments: list[str], *folders: Path) -> str:
    """Return everything that may switch a plugin off, unread: what is not imported early is imported later."""
    files = [folder / name for folder in folders or [ROOT] for name in SETTINGS]
    return "\n".join([*(path.read_text(encoding="utf-8", errors="replace") for path in files if path.is_file()), *arguments])


def is_autoload_off(arguments: list[str]) -> bool:
    """Say whether pytest loads no plugin by itself."""
    return bool(os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD")) or "--disable-plugin-autoload" in settings_text(arguments)


def is_of_worktree(module: str) -> bool:
    """Say whether a module's code lies in the worktree, and not in an environment inside it."""
    spec = find_spec(module.partition(".")[0])
    places = [spec.origin] if spec and spec.origin else list(spec.submodule_search_locations or []) if spec else []
    return any(ROOT in Path(place).parents and Path(sys.prefix) not in Path(place).parents for place in places)


def remember_distributions() -> None:
    """Have the distributions read now, and not by each child; whoever installs one, or adds a folder, finds what there is then."""
    read = importlib.metadata.distributions
    found = [Remembered(each._path) if type(each) is importlib.metadata.PathDistribution else each for each in read()]  # noqa: SLF001  # its one field
    folders = {folder: changed(folder) for folder in sys.path}
    for each in found:
        if any(point.group == "pytest11" for point in each.entry_points):
            _ = each.files, each.metadata

    def distributions(**context: Any) -> Iterator[importlib.metadata.Distribution]:
        is_as_it_was = not context and {folder: changed(folder) for folder in sys.path} == folders
        return iter(found) if is_as_it_was else iter(read(**context))

    importlib.metadata.distributions = distributions


def changed(folder: str) -> int:
    """Return when something was last added to a folder; 0 where there is none."""
    try:
        return os.stat(folder or ".").st_mtime_ns  # noqa: PTH116  # a hot path
    except OSError:
        return 0


def listed(path: str) -> int:
    """Return how many entries a folder of /proc has."""
    return len(os.listdir(path))  # noqa: PTH208  # names only


def check_fit(descriptors: int) -> None:
    """Raise Unfit for what a forked child would share with the next one, or lose."""
    if listed("/proc/self/task") > 1:
        raise Unfit("a plugin has started a thread")
    if Path(f"/proc/self/task/{os.getpid()}/children").read_text():
        raise Unfit("a plugin has started a process")
    if listed("/proc/self/fd") > descriptors:
        raise Unfit("a plugin has opened a file or a connection and keeps it")
    if sys.gettrace() is not None or sys.getprofile() is not None:
        raise Unfit("the interpreter is traced from its start")
    monitoring = getattr(sys, "monitoring", None)
    if monitoring and any(monitoring.get_tool(number) for number in range(6)):
        raise Unfit("the interpreter is monitored from its start")


def may_wait(path: Path, imported: Imported) -> bool:
    """Say whether the child of a package comes to our plugin's gate before it imports anything of the project, or writes."""
    is_early = NAMES_A_PLUGIN.search(settings_text([], path, *path.parents)) or "PYTEST_PLUGINS" in os.environ
    return not (is_early or imported.said or imported.left)
