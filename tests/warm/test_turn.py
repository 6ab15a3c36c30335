"""The next package's child prepares itself while a package runs; what belongs to the project waits for its turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.run.project import Project, wait_until
from tests.warm.test_fitness import install, warm_interpreters

SLOW = "import pathlib, time\ndef test_it():\n    time.sleep(0.7)\n    pathlib.Path('over').touch()\n"
LATE = "import pathlib, sys\nif sys.argv[-1] == 'tests/b':\n    assert pathlib.Path('over').exists(), 'too early'\n    pathlib.Path('seen').touch()\n"
NAMED = "[pytest]\npythonpath = .\naddopts = -p late\n"


def two_packages(root: Path) -> Project:
    """Return a project of a slow package a, and b."""
    project = Project(root, "tests/a", "tests/b")
    project.package("tests/a", SLOW)
    project.package("tests/b", "def test_it(): pass\n")
    return project


@pytest.mark.parametrize(
    ("place", "settings"), [("tests/b/conftest.py", ""), ("late.py", "pytest.ini"), ("late.py", "tests/b/pytest.ini")], ids=str
)
def test_nothing_of_the_project_is_imported_before_its_turn(tmp_path: Path, place: str, settings: str) -> None:
    """A conftest or a plugin, named in the root's or the package's own settings, is imported when the package before is over."""
    project = two_packages(tmp_path / "p")
    project.write(place, LATE)
    if settings:
        project.write(settings, NAMED)
    project.run(env={"PYTHONPATH": f"{Path(__file__).parents[2]}:{project.root}"}).expect(0)
    assert (project.root / "seen").exists()


@pytest.mark.parametrize("signum", [9, 15])
def test_a_child_that_waits_has_prepared_itself(tmp_path: Path, signum: int) -> None:
    """The plugins are registered before its turn, and a run that is ended leaves no child behind."""
    plugin = (
        "import pathlib, sys, pytest\n@pytest.hookimpl(tryfirst=True)\ndef pytest_addoption(parser):\n"
        "    pathlib.Path('ready-' + sys.argv[-1][-1]).touch()\n"
    )
    project = two_packages(tmp_path / "p")
    project.package("tests/a", "import time\ndef test_it(): time.sleep(120)\n")
    project.write("pytest.ini", "[pytest]\naddopts = -p no:cacheprovider\n")
    with project.start(env=install(tmp_path / "lib", plugin)) as run:
        wait_until((project.root / "ready-b").exists, 60)
        run.send_signal(signum)
        run.communicate(timeout=30)
    wait_until(lambda: warm_interpreters(project.root) == [], 20)


def test_a_child_whose_turn_never_comes_is_ended(tmp_path: Path) -> None:
    """After --fail-fast nothing is left, and the package counts as not run."""
    project = two_packages(tmp_path / "p")
    project.package("tests/a", "def test_it(): assert 0\n")
    found = project.packages("--fail-fast", code=1)
    assert found["tests/b"]["status"] == "not-run"
    wait_until(lambda: warm_interpreters(project.root) == [], 20)


KILLS = """
import os, pathlib, signal, time
def parent(pid): return int(pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[1])
def is_warm(pid): return b'warm.py' in pathlib.Path(f'/proc/{pid}/cmdline').read_bytes()
def waiting():
    for pid in (int(entry.name) for entry in pathlib.Path('/proc').glob('[0-9]*')):
        try:
            if pathlib.Path(f'/proc/{pid}/cwd').resolve() == pathlib.Path.cwd() and is_warm(pid) and is_warm(parent(pid)) and is_warm(parent(parent(pid))):
                yield pid
        except OSError:
            pass
def test_it():
    deadline = time.monotonic() + 20
    while not (found := list(waiting())):
        assert time.monotonic() < deadline
    for pid in found:
        os.kill(pid, signal.SIGKILL)
"""


def test_a_child_that_died_while_it_waited_is_replaced(tmp_path: Path) -> None:
    """Its package is run all the same."""
    project = two_packages(tmp_path / "p")
    project.package("tests/a", KILLS)
    found = project.packages(code=0)
    assert [found[name]["status"] for name in ("tests/a", "tests/b")] == ["passed", "passed"]
