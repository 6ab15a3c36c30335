"""Where forking would not be the same, packages get an interpreter of their own, and a line says why; nothing outlives the run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.run.project import Project, wait_until

UNFIT = {
    "thread": ("import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n", "has started a thread"),
    "process": ("import subprocess\nother = subprocess.Popen(['sleep', '2'])\n", "has started a process"),
    "file": ("import socket\nkept = socket.socket()\n", "has opened a file or a connection"),
    "trace": ("import sys\nsys.settrace(lambda *_: None)\n", "is traced"),
}


def install(folder: Path, source: str) -> dict[str, str | None]:
    """Put a plugin into a folder of libraries outside the project; return the environment in which pytest finds it."""
    about = folder / "plug-1.dist-info"
    about.mkdir(parents=True)
    (folder / "plug.py").write_text(source)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[pytest11]\nplug = plug\n")
    (about / "RECORD").write_text("plug.py,,\nplug-1.dist-info/METADATA,,\n")
    here = Path(__file__).resolve().parent.parent.parent
    return {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": None, "PYTHONPATH": f"{here}:{folder}"}


def two_packages(root: Path, source: str = "def test_it(): pass\n", toml: str = "") -> Project:
    """Return a project of packages a and b."""
    project = Project(root, "tests/a", "tests/b", toml=toml)
    for name in ("a", "b"):
        project.package(f"tests/{name}", source)
    return project


def warm_interpreters(root: Path) -> list[int]:
    """Return the processes of a project's warm interpreter, its children included."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").resolve() == root.resolve() and b"warm.py" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("kind", UNFIT)
def test_what_makes_forking_unsafe_is_said(tmp_path: Path, kind: str) -> None:
    """A plugin that starts or opens something at its import: pytest starts anew, once said, and all is green."""
    source, reason = UNFIT[kind]
    project = two_packages(tmp_path / "p")
    done = project.run(env=install(tmp_path / "lib", source)).expect(0, "pytest starts anew for each package: ", reason)
    assert done.output.count("starts anew") == 1


def test_a_plugin_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    """The package's own pytest then shows the error, as it would by hand."""
    project = two_packages(tmp_path / "p")
    project.run(env=install(tmp_path / "lib", "import no_such_module\n")).expect(1, "plugin 'plug' cannot be imported")


def test_a_plugin_that_the_project_switched_off_is_not_imported(tmp_path: Path) -> None:
    """What it would do at its import stays undone."""
    project = two_packages(tmp_path / "p")
    project.write("pytest.ini", "[pytest]\naddopts = -p no:plug\n")
    done = project.run(env=install(tmp_path / "lib", "import no_such_module\n")).expect(0)
    assert "starts anew" not in done.output


def test_what_a_plugin_prints_at_its_import_is_in_each_packages_output(tmp_path: Path) -> None:
    """As if each package had imported it."""
    project = two_packages(tmp_path / "p")
    done = project.run(env=install(tmp_path / "lib", "print('LOADED')\n")).expect(0)
    assert done.stdout.count("LOADED\n") == 2


def test_generators_that_chance_seeded_differ_between_packages(tmp_path: Path) -> None:
    """Names made up by a library's generator shall not meet again in the next package; one that was given a seed keeps it."""
    env = install(tmp_path / "lib", "import random\nchance, given = random.Random(), random.Random(3)\n")
    project = two_packages(
        tmp_path / "p", "import plug\ndef test_it(): open('drawn', 'a').write(f'{plug.chance.random()} {plug.given.random()}\\n')\n"
    )
    project.run(env=env).expect(0)
    first, second = (project.root / "drawn").read_text().splitlines()
    assert first.split()[0] != second.split()[0]
    assert first.split()[1] == second.split()[1]


def test_fork_false_starts_every_package_anew(tmp_path: Path) -> None:
    """And needs no line, since it was asked for."""
    project = two_packages(tmp_path / "p", toml="[run]\nfork = false\n")
    project.package("tests/a", "import pathlib\ndef test_it(): assert b'warm.py' not in pathlib.Path('/proc/self/cmdline').read_bytes()\n")
    assert "starts anew" not in project.run().expect(0).output


def test_a_warm_interpreter_that_dies_is_done_without(tmp_path: Path) -> None:
    """The package at work lives on, later ones start anew, and a line says so."""
    project = two_packages(tmp_path / "p")
    project.package(
        "tests/a",
        "import os, pathlib\ndef test_it():\n    for entry in pathlib.Path('/proc').glob('[0-9]*'):\n"
        "        try:\n            ours = (entry / 'cwd').resolve() == pathlib.Path.cwd() and b'warm.py' in (entry / 'cmdline').read_bytes()\n"
        "        except OSError:\n            continue\n"
        "        if ours and int(entry.name) != os.getpid():\n            os.kill(int(entry.name), 9)\n",
    )
    project.run().expect(0, "the warm interpreter has ended by itself")


@pytest.mark.parametrize("signum", [9, 15, 2])
def test_the_warm_interpreter_ends_with_the_run(tmp_path: Path, signum: int) -> None:
    """Also when the run is killed: neither it nor what it forked is left."""
    project = two_packages(tmp_path / "p", "import pathlib, time\ndef test_it():\n    pathlib.Path('begun').touch()\n    time.sleep(120)\n")
    with project.start() as run:
        wait_until((project.root / "begun").exists, 60)
        # Itself, the package at work, and the next one with the parent that it has until its turn.
        wait_until(lambda: len(warm_interpreters(project.root)) == 4, 20)
        os.kill(run.pid, signum)
        run.communicate(timeout=30)
    wait_until(lambda: warm_interpreters(project.root) == [], 20)


def test_a_time_out_ends_a_forked_package(tmp_path: Path) -> None:
    """The next package runs."""
    project = Project(tmp_path / "p", '{ path = "tests/a", timeout = 3 }', "tests/b", toml="[run]\ngrace = 1\n")
    project.package("tests/a", "import time\ndef test_it(): time.sleep(120)\n")
    project.package("tests/b", "def test_it(): pass\n")
    found = project.packages(code=1)
    assert [found[name]["status"] for name in ("tests/a", "tests/b")] == ["timeout", "passed"]
