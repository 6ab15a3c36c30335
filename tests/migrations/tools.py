"""Real migration tools, installed by name into a folder of this test run, or skipped aloud."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def python_packages(folder: Path, *names: str) -> Path:
    """Install Python packages into `folder` and return it."""
    for installer in ([sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"], ["uv", "pip", "install", "-q"]):
        if shutil.which(installer[0]) is None:
            continue
        done = subprocess.run([*installer, "--target", str(folder), *names], capture_output=True, text=True, check=False, timeout=300)
        if done.returncode == 0:
            return folder
    pytest.skip(f"{' and '.join(names)} could not be installed with pip or uv")


def node_package(folder: Path, name: str) -> Path:
    """Install a package of npm's into `folder` and return the folder of its programs."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"{name} needs npm, which is not installed")
    argv = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), name]
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        pytest.skip(f"{name} could not be installed with npm")
    return folder / "node_modules" / ".bin"


def program(name: str, package: str) -> str:
    """Return the folder of a program that must be on the machine."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: it comes with {package}")
    return os.path.dirname(found)  # noqa: PTH120  # a text for PATH
