"""Which git worktree a path lies in, read from the files that git keeps; git itself is not asked and need not be there."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.errors import UsageError


def top_of(path: Path) -> Path | None:
    """Return the top folder of the worktree that `path` lies in, or None outside any."""
    for folder in (path, *path.parents):
        if (folder / ".git").exists():
            return folder
    return None


def repository_of(top: Path) -> Path:
    """Return the folder that all worktrees of `top`'s repository share; `top` itself where git's files cannot be read."""
    git = top / ".git"
    try:
        if git.is_file():
            git = (top / git.read_text(errors="surrogateescape").removeprefix("gitdir:").strip()).resolve()
        common = git / "commondir"
        return (git / common.read_text(errors="surrogateescape").strip()).resolve() if common.exists() else git.resolve()
    except OSError:
        return top


def repository(root: Path) -> str:
    """Return what names `root`'s repository in a stamp: its common git folder, else `root` itself."""
    top = top_of(root)
    return str(repository_of(top) if top else root)


def prove_own_code(root: Path) -> None:
    """Raise UsageError when the code or the environment at work belongs to another worktree of `root`'s repository.

    Another worktree's activated environment would test that worktree's code.
    """
    top = top_of(root)
    if top is None:
        return
    for what, path in (("harness", Path(__file__).resolve()), ("Python environment", Path(sys.prefix).resolve())):
        other = top_of(path)
        if other is not None and other != top and repository_of(other) == repository_of(top):
            raise UsageError(
                f"the {what} at work is the one of another worktree, {str(other)!r}, and this one is {str(top)!r}",
                next="Run this worktree's own .venv/bin/inv; test/bootstrap-stack.sh makes it.",
            )


def prove_own_tasks(root: Path) -> None:
    """Raise UsageError when Invoke climbed to a tasks.py that is not beside `root`'s harness.toml."""
    loaded = getattr(sys.modules.get("tasks"), "__file__", None)
    if not loaded:
        return
    path = Path(loaded).resolve()
    if (path.parent.parent if path.name == "__init__.py" else path.parent) != root:
        raise UsageError(
            f"inv runs {loaded!r}, and the harness.toml here is in {str(root)!r}",
            next="Put a tasks.py beside it (`harness init` writes one), or call `harness`.",
        )


def prove_not_hidden(root: Path) -> None:
    """Raise UsageError when a package of `root`'s own has this one's name: pytest, which looks there first, would not find its plugin."""
    own = [path for path in (root / "harness.py", root / "harness/__init__.py") if path.exists()]
    if own and Path(__file__).parent != root / "harness":
        raise UsageError(f"{str(own[0])!r} hides the harness from pytest", next="Rename it, or move it into a folder such as src.")
