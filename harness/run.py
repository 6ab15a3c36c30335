"""`inv test`: reset the databases of the chosen packages, run them one at a time, keep and report what happened."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from harness import report, runner, session
from harness.errors import Outcome, UsageError, redact
from harness.results import DatabaseReset, PackageResult, encode, exit_code, totals
from harness.session import Opened, Say
from harness.settings import FILE, Package, Settings

LAST = "last.json"


class Request(NamedTuple):
    """What `inv test` is asked for; `wait` in seconds."""

    packages: tuple[Package, ...]
    arguments: tuple[str, ...] = ()
    fail_fast: bool = False
    quiet: bool = False
    strict: bool = False
    reset: bool = True
    wait: float = 0.0
    durations: str = ""
    junit: str = ""
    html: str = ""


def select(settings: Settings, *, names: Sequence[str], e2e: bool) -> tuple[Package, ...]:
    """Return the packages to run in harness.toml's order: those named (by name or path), else the test packages and with `e2e` all."""
    if not settings.packages:
        raise UsageError(f"{FILE} lists no packages", next='Add `test = ["tests/FOLDER"]` to its [packages].')
    if not names:
        chosen = tuple(package for package in settings.packages if e2e or package.role == "test")
        if not chosen:
            raise UsageError(f"{FILE} lists no test packages", next="Run `inv test --e2e`, or add one to its [packages].")
        return chosen
    found = set()
    for name in names:
        path = Path(name).as_posix()
        matching = [package.name for package in settings.packages if name == package.name or path == package.path]
        if not matching:
            raise UsageError(f"{FILE} has no package {name!r}", next=f"It has: {', '.join(package.name for package in settings.packages)}.")
        found.update(matching)
    return tuple(package for package in settings.packages if package.name in found)
