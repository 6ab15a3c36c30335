"""A project whose packages need no database, run by the driver beside this file."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.builders import Completed, SampleRepository

DRIVER = Path(__file__).with_name("driver.py")


class Project(SampleRepository):
    """A sample repository without a cluster; `run` and `start` drive the runner alone."""

    def __init__(self, root: Path, *packages: str, toml: str = "") -> None:
        """Write harness.toml with `packages`, each a path or an inline table, and `toml` behind them."""
        entries = ", ".join(package if package.startswith("{") else json.dumps(package) for package in packages)
        super().__init__(root, settings=f"[packages]\ntest = [{entries}]\n{toml}")

    def argv(self, *arguments: str, command: str = "inv") -> list[str]:
        """Return the driver's command line."""
        assert command == "inv"
        return [sys.executable, str(DRIVER), *arguments]

    def environment(self, changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
        """Return the sample's environment without pytest's third-party plugins: what is tried here is our own."""
        return super().environment({"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **(changes or {})})

    def document(self, *arguments: str, code: int, env: Mapping[str, str | None] | None = None) -> dict[str, Any]:
        """Run with --json, assert the exit code, and return the document."""
        path = self.root.parent / "document.json"
        self.run("--json", str(path), *arguments, env=env).expect(code)
        document: dict[str, Any] = json.loads(path.read_text())
        return document

    def packages(self, *arguments: str, code: int, env: Mapping[str, str | None] | None = None) -> dict[str, dict[str, Any]]:
        """Run and return the packages of the document by name."""
        return {package["package"]: package for package in self.document(*arguments, code=code, env=env)["packages"]}

    def bytecode(self) -> list[str]:
        """Return what lies in the project that only a cache would have left there."""
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.name in ("__pycache__", ".pytest_cache"))


def alive(mark: str) -> list[str]:
    """Return the command lines of running processes that contain `mark`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if mark in line:
                found.append(line)
    return found


def wait_until(claim: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait until `claim` holds; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain"
        time.sleep(0.02)


__all__ = ["DRIVER", "Completed", "Project", "alive", "wait_until"]
