"""Folders for worktrees, on memory where there is some, and the end of every server that a test left in them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.place import Place, end_all


@pytest.fixture
def ground() -> Iterator[Path]:
    """Return a folder that any account may pass, with a space in its name."""
    memory = Path("/dev/shm")  # noqa: S108  # memory, in a folder of our own
    base = memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix="harness cluster ", dir=base)).resolve()
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        end_all(folder)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def make_place(ground: Path) -> Callable[..., Place]:
    """Return a maker of worktrees that share one state folder."""

    def make(name: str = "the shop", stack: str = "", **options: object) -> Place:
        return Place(ground / name, ground / "state", stack, **options)  # type: ignore[arg-type]  # passed on as they are

    return make


@pytest.fixture
def place(make_place: Callable[..., Place]) -> Place:
    """Return one worktree without a cluster yet."""
    return make_place()
