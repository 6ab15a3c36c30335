"""What every task begins with: this worktree's settings, the shell's environment, and flags read strictly."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.settings import Settings

JSON_HELP = "Write the JSON document to this file; - for stdout, with everything else on stderr."
WAIT_HELP = "Seconds to wait for another run on the same databases (600)."
NO_WAIT_HELP = "Give up at once when another run is on."
DATABASE_HELP = "test (the default) or e2e."


def say(line: str) -> None:
    """Print one line of ours; a reader who has seen enough is no error."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def begin() -> tuple[Settings, Mapping[str, str]]:
    """Return this worktree's settings and the shell's environment, from which libpq will fill in nothing any more."""
    # Invoke keeps bytecode of nothing, which is meant for tasks.py: not every installer compiles, and our modules take 80 ms.
    sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)
    from harness import settings, worktree

    root = settings.find_root()
    worktree.prove_own_tasks(root)
    worktree.prove_own_code(root)
    shell = settings.environment()
    settings.forget_libpq_environment()
    return settings.load(root), shell


def wait_seconds(wait: str, *, no_wait: bool) -> float:
    """Return how long to wait for a lock; UsageError for anything but seconds."""
    from harness.lock import DEFAULT_WAIT

    if no_wait:
        return 0.0
    try:
        seconds = float(wait) if wait else DEFAULT_WAIT
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"--wait is {wait!r}", next="Give seconds, 0 or more.")
    return seconds


def chosen_roles(database: str, settings: Settings) -> tuple[str, ...]:
    """Return the role that --database names, or all test roles; UsageError for another one."""
    if not database:
        return settings.test_roles
    if database not in settings.test_roles:
        raise UsageError(f"--database is {database!r}", next=f"It takes {' or '.join(settings.test_roles)}.")
    return (database,)


def arguments_after_dashes(argv: Sequence[str]) -> list[str]:
    """Return what follows the first `--`, argument by argument; Invoke's own remainder has lost the quoting."""
    return list(argv[argv.index("--") + 1 :]) if "--" in argv else []
