"""A forked package sees, says and ends as one whose interpreter started anew, and nothing of the package before it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.run.project import Project
from tests.run.test_statuses import STATUSES

PROBE = (Path(__file__).parent / "data" / "probe.txt").read_text()
NEW = "[run]\nfork = false\n"
ENVIRONMENTS: dict[str, dict[str, str | None]] = {
    "plugins": {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": None},
    "start": {"PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1", "PYTHONHASHSEED": "3", "PYTHONWARNINGS": "error", "PYTHONDEVMODE": "1"},
    "locale": {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1:replace"},
    "coerced": {"LANG": "C", "PYTHONFAULTHANDLER": "1"},
}


def seen(root: Path, toml: str, env: dict[str, str | None]) -> dict[str, Any]:
    """Return what the second of two packages saw of itself."""
    project = Project(root, "tests/a", "tests/b", toml=toml)
    for name in ("a", "b"):
        project.package(f"tests/{name}", PROBE, name="test_probe.py")
    project.run(env=env).expect(0)
    found: dict[str, Any] = json.loads((root / "seen-b.json").read_text().replace(str(root), "ROOT").replace(root.name, "ROOT"))
    return found


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_process_sees_the_same_of_itself(tmp_path: Path, name: str) -> None:
    """Paths, arguments, plugins, warnings, environment, signals, files, threads, limits and streams are equal, one by one."""
    forked = seen(tmp_path / "fork", "", ENVIRONMENTS[name])
    anew = seen(tmp_path / "anew", NEW, ENVIRONMENTS[name])
    assert {key for key, value in forked["facts"].items() if value != anew["facts"][key]} == set()
    assert forked["callbacks"] == anew["callbacks"]
    assert set(anew["modules"]) <= set(forked["modules"])


def test_every_end_is_the_same(tmp_path: Path) -> None:
    """Status, exit code, signal and each test's outcome do not depend on how the package was started."""
    ends = []
    for name, toml in (("fork", ""), ("anew", NEW)):
        project = Project(tmp_path / name, *(f"tests/{status}" for status in STATUSES), toml=toml)
        for status, (source, *_) in STATUSES.items():
            project.package(f"tests/{status}", source)
        project.write("tests/no-conftest/conftest.py", "import no_such_module\n")
        found = project.packages(code=1)
        ends.append(
            {
                package: [found[package][key] for key in ("status", "exit", "signal")]
                + [[test["id"], test["outcome"]] for test in found[package]["tests"]]
                for package in found
            }
        )
    assert ends[0] == ends[1]


ENDS = {
    "at-exit": "import atexit, sys\ndef test_it(): atexit.register(lambda: open('end', 'w').write('called'))\n",
    "thread": "import threading, time\ndef late():\n    time.sleep(0.5)\n    open('end', 'w').write('called')\ndef test_it(): threading.Thread(target=late).start()\n",
    "buffered": "import sys\ndef test_it(): sys.__stdout__.write('SAID-AT-THE-END')\n",
    "spawn": "import multiprocessing as m\ndef test_it():\n    p = m.get_context('spawn').Process(target=print)\n    p.start()\n    p.join()\n    assert p.exitcode == 0\n",
    "fork": "import multiprocessing as m\ndef test_it():\n    p = m.get_context('fork').Process(target=print)\n    p.start()\n    p.join()\n    assert p.exitcode == 0\n",
}


def test_what_an_interpreter_does_at_its_end_is_done(tmp_path: Path) -> None:
    """Threads are waited for, registered functions called, output flushed; a test's own processes work."""
    project = Project(tmp_path / "p", *(f"tests/{name}" for name in ENDS))
    for name, source in ENDS.items():
        project.package(f"tests/{name}", source.replace("'end'", f"'end-{name}'"))
    done = project.run("--", "-s").expect(0, "SAID-AT-THE-END")
    assert "Traceback" not in done.output
    assert sorted(path.name for path in project.root.glob("end-*")) == ["end-at-exit", "end-thread"]


POLLUTES = """
import os, random, signal, sys, threading, time, warnings
sys.modules["polluted"] = sys
def test_it():
    os.environ["POLLUTED"] = "1"
    os.chdir("/")
    os.umask(0o777)
    sys.path.insert(0, "/polluted")
    sys.setrecursionlimit(5000)
    random.seed(7)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    warnings.simplefilter("error")
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    os.open("/dev/null", os.O_RDONLY)
"""
LOOKS = """
import os, random, signal, sys, threading
def test_it():
    assert "polluted" not in sys.modules and "POLLUTED" not in os.environ and "/polluted" not in sys.path
    assert os.getcwd() == {root!r} and os.umask(0o22) != 0o777 and sys.getrecursionlimit() != 5000
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert len(threading.enumerate()) == len(os.listdir("/proc/self/task")) == 1
    random_here, seeded = random.random(), random.Random(7).random()
    assert random_here != seeded
"""


def test_nothing_of_a_package_is_visible_in_the_next(tmp_path: Path) -> None:
    """Modules, environment, folder, signals, random state, threads and settings of the interpreter end with their package."""
    project = Project(tmp_path / "p", "tests/a", "tests/b")
    project.package("tests/a", POLLUTES)
    project.package("tests/b", LOOKS.format(root=str(project.root.resolve())))
    project.run().expect(0)


def test_colours_and_buffers_follow_the_streams(tmp_path: Path) -> None:
    """Captured output is the same text in both modes, whatever the streams of the run are."""
    texts = []
    for name, toml in (("fork", ""), ("anew", NEW)):
        project = failing(tmp_path / name, toml)
        texts.append(VARYING.sub("…", project.run("--quiet").expect(1).stdout))
    assert texts[0] == texts[1]


VARYING = re.compile(r"\d+\.\d+ ?s|(?m:^(?:cachedir|rootdir): .*)|\(0:\d\d:\d\d\)|about .*")


def failing(root: Path, toml: str) -> Project:
    """Return a project of one package that prints and fails."""
    project = Project(root, "tests/a", toml=toml)
    project.package("tests/a", "def test_it():\n    print('HERE')\n    assert 0\n")
    return project


def test_a_terminal_sees_the_same(tmp_path: Path) -> None:
    """Colours, width and progress at a terminal do not depend on how the package was started."""
    texts = []
    for name, toml in (("fork", ""), ("anew", NEW)):
        project = failing(tmp_path / name, toml)
        ours, theirs = os.openpty()
        with project.start(env={"TERM": "xterm", "COLUMNS": "90"}, stdout=theirs, stderr=subprocess.STDOUT) as run:
            os.close(theirs)
            text = b""
            with suppress(OSError):  # how a terminal's end without its other end says that all is read
                while part := os.read(ours, 65536):
                    text += part
            assert run.wait(60) == 1
        os.close(ours)
        texts.append(VARYING.sub("…", text.decode()))
    assert "\033[31m" in texts[0]
    assert texts[0] == texts[1]


def test_coverage_is_the_same(tmp_path: Path) -> None:
    """What pytest-cov measures of code imported by a conftest and by a test is equal, line by line."""
    measured = []
    for name, toml in (("fork", ""), ("anew", NEW)):
        project = Project(tmp_path / name, "tests/a", "tests/b", toml=toml)
        project.write("lib.py", "def first():\n    return 1\n\n\ndef second():\n    return 2\n")
        project.write("pytest.ini", "[pytest]\npythonpath = .\naddopts = --cov=lib --cov-branch --cov-report=json\n")
        for package, function in (("a", "first"), ("b", "second")):
            project.write(f"tests/{package}/conftest.py", "import lib\n")
            project.package(f"tests/{package}", f"import lib\ndef test_it(): lib.{function}()\n")
        project.run(env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": None}).expect(0)
        measured.append(json.loads((project.root / "coverage.json").read_text())["files"]["lib.py"])
    assert measured[0]["executed_lines"] == [1, 5, 6]
    assert measured[0] == measured[1]
