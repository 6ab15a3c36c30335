"""RUN-02, RUN-03: the code that runs is the code that is there, one test at a time, whatever the project's settings say."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import source_hash
from pathlib import Path

import pytest

from tests.builders import HARNESS_ROOT
from tests.run.project import Project

LONG_AGO = 1_704_067_200


def write_old(project: Project, path: str, text: str) -> None:
    """Write a file whose size and second are the same each time."""
    os.utime(project.write(path, text), (LONG_AGO, LONG_AGO))


@pytest.fixture
def stale(tmp_path: Path) -> Project:
    """Return a project that pytest ran by hand, with bytecode, before a same-size edit within the same second."""
    project = Project(tmp_path / "p", "tests/g")
    write_old(project, "tests/g/helper.py", "V = 1\n")
    write_old(project, "tests/g/test_v.py", "def test_v(): assert 1 == 1\n")
    write_old(project, "tests/g/test_helper.py", "import helper\ndef test_h(): assert helper.V == 1\n")
    write_old(project, "plug.py", "W = 1\n")
    write_old(project, "tests/g/test_plug.py", "import plug\ndef test_p(): assert plug.W == 1\n")
    env = {name: value for name, value in project.environment().items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, "-m", "pytest", "-q", "tests/g"], cwd=project.root, env=env, check=True, capture_output=True)
    assert any("helper" in path.name for path in project.root.rglob("*.pyc"))
    return project


def test_new_source_runs_although_old_bytecode_looks_current(stale: Project) -> None:
    """Tests and helpers are compiled from their source in every run, and nothing is written."""
    before = stale.bytecode()
    stale.run().expect(0)
    write_old(stale, "tests/g/helper.py", "V = 2\n")
    write_old(stale, "tests/g/test_v.py", "def test_v(): assert 1 == 2\n")
    write_old(stale, "plug.py", "W = 2\n")
    result = stale.packages(code=1)["tests/g"]
    assert [test["outcome"] for test in result["tests"]] == ["failed", "failed", "failed"]
    assert stale.bytecode() == before


def test_a_plugin_of_the_project_is_not_read_stale_either(stale: Project) -> None:
    """A module that pytest imports before ours, by `-p` in its settings, is compiled from its source too."""
    stale.write("pytest.ini", "[pytest]\naddopts = -p plug\npythonpath = .\n")
    write_old(stale, "plug.py", "W = 2\n")
    stale.package("tests/g", "import plug\ndef test_w(): assert plug.W == 2\n")
    result = stale.packages("--", "tests/g/test_it.py", code=0)["tests/g"]
    assert [test["outcome"] for test in result["tests"]] == ["passed"]


def test_a_python_that_a_test_starts_reads_no_stale_bytecode(stale: Project) -> None:
    """An application started by a test runs its new source."""
    write_old(stale, "plug.py", "W = 2\n")
    source = (
        "import subprocess, sys\ndef test_it(): subprocess.run([sys.executable, '-c', 'import plug; assert plug.W == 2'], check=True)\n"
    )
    stale.package("tests/g", source)
    stale.run("--", "tests/g/test_it.py").expect(0)


def test_libraries_keep_their_bytecode(tmp_path: Path) -> None:
    """What lies in site-packages is not compiled anew for every package."""
    project = Project(tmp_path / "p", "tests/g")
    source = """
import importlib.util, os, sys
from harness.bytecode import LibraryLoader
def test_library():
    assert isinstance(importlib.util.find_spec("junitparser").loader, LibraryLoader)
def test_own():
    assert not isinstance(importlib.util.find_spec("test_it").loader, LibraryLoader)
    assert sys.dont_write_bytecode and os.environ["PYTHONPYCACHEPREFIX"] == sys.pycache_prefix
"""
    project.package("tests/g", source)
    project.run().expect(0, "2 passed")


def test_a_left_over_folder_of_bytecode_is_reported(tmp_path: Path) -> None:
    """A package removed on this branch could still be imported as a namespace package."""
    project = Project(tmp_path / "p", "tests/g")
    project.package("tests/g", "def test_it(): pass\n")
    project.write("pk/__pycache__/a.cpython-311.pyc", b"")
    project.write("tests/h/deep/__pycache__/a.cpython-311.pyc", b"")
    project.run().expect(0, "pk/ holds nothing but __pycache__", "tests/h/ holds nothing but __pycache__")


WRITES_ITS_PROCESS = """
import os, pathlib, pytest
@pytest.mark.parametrize("n", range(3))
def test_it(n):
    with open(pathlib.Path(__file__).parents[2] / "seen", "a") as seen:
        seen.write(f"{os.getpid()} {os.environ.get('PYTEST_XDIST_WORKER')} {os.environ.get('PYTEST_ADDOPTS')}\\n")
"""
SETTINGS = {
    "ff": ("addopts = --ff", "--ff"),
    "lf": ("addopts = --lf --lfnf=none", "--lf"),
    "stepwise": ("addopts = --sw --sw-skip", "--sw"),
    "xdist": ("addopts = -n 2 --dist loadscope", "-n"),
    "cache-dir": ("cache_dir = x\naddopts = --strict-config", ""),
    "no-cache-plugin": ("addopts = --strict-config -p no:cacheprovider", ""),
    "cache-show": ("addopts = --cache-show", "--cache-show"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_projects_own_options_do_not_fight_the_run(tmp_path: Path, name: str) -> None:
    """Options that read a cache or start workers are switched off with a line: one process, all tests, nothing written."""
    text, flag = SETTINGS[name]
    project = Project(tmp_path / "p", "tests/g")
    project.package("tests/g", WRITES_ITS_PROCESS)
    project.write("pytest.ini", f"[pytest]\n{text}\n")
    env = {"PYTEST_PLUGINS": "xdist.plugin"} if name == "xdist" else {}
    done = project.run(env=env).expect(0, "3 passed", flag)
    seen = (project.root / "seen").read_text().splitlines()
    assert len(seen) == 3
    assert {line.partition(" ")[2] for line in seen} == {"None None"}
    assert len({line.split()[0] for line in seen}) == 1
    assert ("had no effect" in done.stdout) == bool(flag)
    assert project.bytecode() == []
    assert not (project.root / "x").exists()


def test_pytest_addopts_is_not_used(tmp_path: Path) -> None:
    """The shell's own options neither select nor parallelise, and a line says so."""
    project = Project(tmp_path / "p", "tests/g")
    project.package("tests/g", WRITES_ITS_PROCESS)
    project.run(env={"PYTEST_ADDOPTS": "-n 2 -k nothing"}).expect(0, "PYTEST_ADDOPTS is not used", "3 passed")


REFUSED = (
    "-n 4|-n 0 -n 4|-n4|-n=4|-nauto|-xn4|-vn 4|--numprocesses=4|--numprocesses 4|--dist loadscope|-d|-f|--looponfail|--lf|-x --lf|--ff|--last-failed"
    "|--sw|--stepwise|--nf|--testmon|--testmon-noselect|--cache-show"
)


@pytest.mark.parametrize("arguments", REFUSED.split("|"))
def test_options_that_break_serial_are_refused_after_the_dashes(arguments: str) -> None:
    """A person who asks for workers or a cache is told why not, before anything starts."""
    from harness.arguments import check_serial
    from harness.errors import UsageError

    with pytest.raises(UsageError, match="serial"):
        check_serial(arguments.split(" "))


@pytest.mark.parametrize(
    "arguments", ["-n 0", "-n0", "-x -v", "-k nothing", "-k -n", "-svx", "-m lf", "--no-header", "-p no:randomly", "-o x=--lf", "-qq"]
)
def test_other_options_pass(arguments: str) -> None:
    """What is no worker and no cache is handed on."""
    from harness.arguments import check_serial

    check_serial(arguments.split(" "))


def test_the_refusal_is_exit_code_2(tmp_path: Path) -> None:
    """No package starts."""
    project = Project(tmp_path / "p", "tests/g")
    project.package("tests/g", WRITES_ITS_PROCESS)
    project.run("--", "-n", "4").expect(2, "serial")
    assert not (project.root / "seen").exists()


@pytest.mark.parametrize("fork", ["true", "false"])
def test_what_pytest_keeps_of_a_library_is_read(tmp_path: Path, fork: str) -> None:
    """No one edits an installed plugin between two runs: pytest's rewritten bytecode of it is as good as its source, and quicker."""
    project = Project(tmp_path / "p", "tests/g", toml=f"[run]\nfork = {fork}\n")
    library = tmp_path / "site-packages"
    about = library / "entry-1.dist-info"
    about.mkdir(parents=True)
    (library / "entry.py").write_text("")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: entry\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[pytest11]\nentry = entry\n")
    (about / "RECORD").write_text("entry.py,,\nlater.py,,\n")
    project.package("tests/g", "def test_it():\n    import later\n    assert later.V == 1\n")
    changes: dict[str, str | None] = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": None, "PYTHONPATH": f"{HARNESS_ROOT}:{library}"}
    (library / "later.py").write_text("V = 1\n")
    env = {name: text for name, text in project.environment(changes).items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, "-m", "pytest", "-q", "tests/g"], cwd=project.root, env=env, check=True, capture_output=True)
    # Bytecode that is the source's by its header, and tells itself from it.
    (library / "later.py").write_text("V = 2\n")
    (kept,) = library.glob("__pycache__/later.*-pytest-*.pyc")
    kept.write_bytes(kept.read_bytes()[:8] + source_hash(b"V = 2\n") + kept.read_bytes()[16:])
    project.run(env=changes).expect(0)
