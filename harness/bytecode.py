"""Have a project's modules compiled from their source in every run, while libraries keep their bytecode."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, nullcontext
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ExtensionFileLoader, FileFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

PREFIX = "PYTHONPYCACHEPREFIX"


class LibraryLoader(SourceFileLoader):
    """Reads a library's bytecode from beside its source: no one edits it between two runs."""

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the module's code, as if no prefix was set."""
        with _no_prefix():
            return super().get_code(fullname)


@contextmanager
def _no_prefix() -> Iterator[None]:
    prefix, sys.pycache_prefix = sys.pycache_prefix, None
    try:
        yield
    finally:
        sys.pycache_prefix = prefix


def read_none_of_the_project(prefix: str, environ: MutableMapping[str, str], private: Mapping[str, str]) -> None:
    """Look for bytecode of everything but libraries below `prefix` from here on, in our child processes too.

    Python compares size and second of the source only, and so runs the old code after a quick edit. Where a module of the
    project is imported already, perhaps from such bytecode, pytest begins anew with the prefix and `private` in `environ`.
    """
    if sys.pycache_prefix == prefix:
        return
    environ[PREFIX] = prefix
    if any(map(_is_the_projects, list(sys.modules.values()))):
        environ.update(private)
        os.execv(sys.executable, [sys.executable, "-m", "pytest", *sys.argv[1:]])  # noqa: S606  # an argument list, no shell
    sys.pycache_prefix = prefix
    sys.path_hooks.insert(0, _find_in_library)
    _find_rewritten_libraries()
    sys.path_importer_cache.clear()


def _library_folders() -> tuple[str, ...]:
    # sysconfig would know too, but takes 10 ms of every start.
    folders = {os.path.dirname(os.__file__)}  # noqa: PTH120  # at every start
    folders |= {path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")}  # noqa: PTH119  # at every start
    return tuple(folder + "/" for folder in folders)


_LIBRARIES = _library_folders()
_OURS = os.path.dirname(os.path.abspath(__file__)) + "/"  # noqa: PTH100, PTH120  # at every start


def _is_the_projects(module: object) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and file.endswith(".py") and not file.startswith((*_LIBRARIES, _OURS))


def _find_rewritten_libraries() -> None:
    """Have pytest read what it keeps of the plugins whose assertions it rewrote beside their source, too; hypothesis takes a second without."""
    rewrite: Any = sys.modules.get("_pytest.assertion.rewrite")
    find = getattr(rewrite, "get_cache_dir", None)
    if find is None:
        return

    def find_cache(path: Path) -> Path:
        with _no_prefix() if str(path).startswith(_LIBRARIES) else nullcontext():
            return Path(find(path))

    rewrite.get_cache_dir = find_cache


def _find_in_library(path: str) -> FileFinder:
    if not f"{path}/".startswith(_LIBRARIES):
        raise ImportError(path)
    return FileFinder(path, (ExtensionFileLoader, EXTENSION_SUFFIXES), (LibraryLoader, SOURCE_SUFFIXES))
