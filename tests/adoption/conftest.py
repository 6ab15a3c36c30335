"""The built packages, folders for adopting repositories, and the end of every server that a test left in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.adoption.adopter import Adopter, installer_environment
from tests.builders import HARNESS_ROOT
from tests.cluster.place import end_all


@pytest.fixture
def ground() -> Iterator[Path]:
    """Return a folder that any account may pass, with a space in its name."""
    folder = Path(tempfile.mkdtemp(prefix="harness adopters ")).resolve()
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        end_all(folder)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def adopter(ground: Path) -> Adopter:
    """Return an empty repository."""
    return Adopter(ground / "the shop")


@pytest.fixture
def make_adopter(ground: Path) -> Callable[[str], Adopter]:
    """Return a maker of empty repositories."""
    return lambda name: Adopter(ground / name)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the source archive, and the wheel from it, and return both by their kind."""
    folder = tmp_path_factory.mktemp("built")
    code = "import hatchling.build as b, sys, os; os.chdir(sys.argv[1]); print(b.build_sdist(sys.argv[2]), b.build_wheel(sys.argv[2]))"
    tools = folder / "tools"
    install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(tools), "hatchling"]
    if not shutil.which("pip", path=str(Path(sys.executable).parent)):
        install = ["uv", "pip", "install", "-q", "--target", str(tools), "hatchling"]
    env = {**installer_environment(), "PYTHONPATH": str(tools)}
    for argv in (install, [sys.executable, "-c", code, str(HARNESS_ROOT), str(folder)]):
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode and argv is install:
            pytest.skip("hatchling could not be installed")
        assert done.returncode == 0, done.stderr
    (wheel,), (archive,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return {"wheel": wheel, "archive": archive}


@pytest.fixture(scope="session")
def outside(tmp_path_factory: pytest.TempPathFactory, built: dict[str, Path]) -> Path:
    """Return an environment in which the wheel alone is installed, with pytest: nothing of this worktree can be reached from it."""
    environment = tmp_path_factory.mktemp("outside") / "environment"
    env = {**installer_environment(), "PATH": os.environ["PATH"]}
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True, env=env, timeout=120)
    argv = [str(environment / "bin/python"), "-m", "pip", "install", "-q", str(built["wheel"]), "pytest"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return environment
