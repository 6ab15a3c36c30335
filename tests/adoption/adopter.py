"""A repository that adopts the harness: somebody's files, and the commands typed in it."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.builders import HARNESS_ROOT, Completed

_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")


def installer_environment() -> dict[str, str]:
    """Return what pip, uv and npm need of this process's environment, and no more."""
    starts = ("PIP_", "UV_", "NPM_CONFIG_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
    return {name: value for name, value in os.environ.items() if name in _PASSED_ON or name.upper().startswith(starts)}


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a source archive and return its only top folder."""
    safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # since 3.12, and in later 3.10 and 3.11
    with tarfile.open(archive) as tar:
        tar.extractall(folder, **safe)  # noqa: S202  # of the index, and into a folder of our own
    (top,) = folder.iterdir()
    return top


class Adopter:
    """A folder with a home and a state folder of its own beside it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root.parent / "home"
        for folder in (root, self.home):
            folder.mkdir(parents=True, exist_ok=True)

    def write(self, path: str, text: str) -> Path:
        """Write a file, its folders included."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def read(self, path: str) -> str:
        """Return a file's text."""
        return (self.root / path).read_text()

    def environment(self, changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
        """Return an allow-listed environment: no DSN, no CI, no activated environment, a home of its own."""
        given: dict[str, str | None] = {**installer_environment(), "HOME": str(self.home), "LANG": "C.UTF-8"}
        given |= {"HARNESS_STATE_DIR": str(self.home / "state")}
        return {key: value for key, value in {**given, **(changes or {})}.items() if value is not None}

    def run(
        self, *argv: str | Path, env: Mapping[str, str | None] | None = None, cwd: Path | None = None, timeout: float = 120
    ) -> Completed:
        """Run a command here to its end."""
        words = [str(word) for word in argv]
        done = subprocess.run(
            words,
            cwd=cwd or self.root,
            env=self.environment(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout,
        )
        return Completed(tuple(words), done.returncode, done.stdout, done.stderr)

    def harness(self, *arguments: str, cwd: Path | None = None) -> Completed:
        """Run the source tree's own `harness` here, as one that is installed elsewhere."""
        code = "import sys; from harness.tasks import main; sys.argv[0] = 'harness'; main()"
        return self.run(sys.executable, "-c", code, *arguments, env={"PYTHONPATH": str(HARNESS_ROOT)}, cwd=cwd)
