"""What can be seen in a package's files before it runs: a .env loaded over the environment, folders of bytecode alone."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.settings import Package

_SKIPPED = {".git", ".venv", "venv", "node_modules", "__pycache__"}


def overriding(root: Path, packages: Sequence[Package]) -> list[tuple[Path, int]]:
    """Return file and line of each conftest.py of the packages, or above them, that loads a .env over the environment."""
    return [(path, line) for path in _conftests(root, packages) for line in _override_lines(path)]


def leftovers(root: Path, packages: Sequence[Package]) -> list[Path]:
    """Return the folders beside and in the packages that hold nothing but bytecode, which Python still imports as packages."""
    parents = {root, *(folder for package in packages for folder in (root / package.path, (root / package.path).parent))}
    found = set()
    for parent in parents:
        if parent.is_dir():
            found |= {
                Path(entry.path) for entry in os.scandir(parent) if entry.is_dir(follow_symlinks=False) and entry.name not in _SKIPPED
            }
    return sorted(folder for folder in found if is_leftover(folder))


def is_leftover(folder: Path) -> bool:
    """Say whether `folder` holds __pycache__ folders, perhaps in subfolders, and nothing else."""
    if not folder.is_dir() or folder.is_symlink():
        return False
    entries = list(os.scandir(folder))
    if not entries:
        return False
    return all(entry.is_dir(follow_symlinks=False) and (entry.name == "__pycache__" or is_leftover(Path(entry.path))) for entry in entries)


def _conftests(root: Path, packages: Sequence[Package]) -> list[Path]:
    found: set[Path] = set()
    for package in packages:
        folder = root / package.path
        if package.command or not folder.exists():
            continue
        found |= {parent / "conftest.py" for parent in (folder, *folder.parents) if parent == root or root in parent.parents}
        for path, folders, files in os.walk(folder):
            folders[:] = [name for name in folders if name not in _SKIPPED]
            if "conftest.py" in files:
                found.add(Path(path) / "conftest.py")
    return sorted(path for path in found if path.is_file())


def _override_lines(path: Path) -> Iterator[int]:
    try:
        source = path.read_bytes()
        if b"env" not in source:
            return
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return  # pytest will say what is wrong with it
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_override(node):
            yield node.lineno


def _is_override(call: ast.Call) -> bool:
    name = ast.unparse(call.func).rpartition(".")[2]
    if name in ("load_dotenv", "read_env", "load_env"):
        return any(keyword.arg in ("override", "overwrite") and not _is_false(keyword.value) for keyword in call.keywords)
    if name == "update" and ast.unparse(call.func) in ("os.environ.update", "environ.update"):
        return "dotenv_values" in ast.unparse(call)
    return False


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and not value.value
