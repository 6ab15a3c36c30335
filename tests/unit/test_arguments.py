"""What stands after `--`: pytest's own options are all known, and what chooses tests is told from what does not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness import arguments
from harness.errors import UsageError
from harness.settings import Package

ONE, TWO = (Package(name=name, path=name, role="test") for name in ("tests/a", "tests/b"))
GO = Package(name="go", path="go", role="test", command=("go",))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder with two packages and a file in neither."""
    for name in ("tests/a/test_a.py", "tests/b/test_b.py", "tests/test_c.py", "go/main.go"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_every_option_of_pytest_is_known(tmp_path: Path) -> None:
    """The installed pytest says itself which of its options take a value."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200"}
    text = subprocess.run(
        [sys.executable, "-m", "pytest", "--help"], cwd=tmp_path, env=env, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    flags, valued = set[str](), set[str]()
    for line in re.findall(r"^  (-.*)$", text, re.MULTILINE):
        names, is_valued = re.match(r"((?:-\w(?: \w+)?, )?--[\w-]+(?:, --[\w-]+)*|-\w)(=)?", line).groups()  # type: ignore[union-attr]  # every one has a name
        (valued if is_valued else flags).update(re.findall(r"--[\w-]+", names))
    refused = {name for name in flags | valued if arguments._REFUSED.fullmatch(name)}
    assert len(flags) > 30
    assert len(valued) > 30
    assert flags - arguments.FLAGS - arguments.SELECTING - refused == set()
    assert valued - arguments.VALUED - arguments.SELECTING - refused == set()
    assert not arguments.FLAGS & valued
    assert not arguments.VALUED & flags


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("-v", False),
        ("-vv -s --tb=short --color yes", False),
        ("-p no:randomly -o addopts= -W error -rA", False),
        ("--strict-markers --durations 3", False),
        ("-k apple", True),
        ("-qk apple", True),
        ("-m slow", True),
        ("--deselect tests/a/test_a.py::test_x", True),
        ("--ignore=tests/a/test_a.py", True),
        ("tests/a", True),
        ("-v tests/a/test_a.py::test_x", True),
        ("--some-plugins-option", True),
    ],
)
def test_what_chooses_tests(given: str, expected: bool, root: Path) -> None:  # noqa: FBT001  # a table's column
    """Only a choice may leave a package without a test."""
    assert arguments.chooses_tests(given.split(), root) is expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("tests/a/test_a.py", ["tests/a/test_a.py"]),
        ("--strict-markers tests/a/test_a.py", ["tests/a/test_a.py"]),
        ("-v tests/a", ["tests/a"]),
        ("--deselect tests/a/test_a.py::test_x", []),
        ("--deselect=tests/a/test_a.py::test_x", []),
        ("--ignore tests/a/test_a.py", []),
        ("--rootdir tests/a", []),
        ("-c tests/a/test_a.py", []),
        ("--unknown tests/a", []),
        ("--unknown tests/a/test_a.py::test_x[a b]", ["tests/a/test_a.py::test_x[a"]),
        ("tests/b/test_b.py", []),
    ],
)
def test_which_paths_are_of_a_package(given: str, expected: list[str], root: Path) -> None:
    """An option's value is none."""
    assert arguments.paths_within(ONE, given.split(), root) == expected


@pytest.mark.parametrize("given", ["tests/test_c.py", "tests", ".", "-v tests/test_c.py::test_x", "--no-header go"])
def test_a_path_outside_every_package_is_refused(given: str, root: Path) -> None:
    """It is named, and so are the places that there are."""
    path = given.rsplit(maxsplit=1)[-1]
    with pytest.raises(UsageError, match=re.escape(f"{path!r} lies in no package of this run")) as caught:
        arguments.check_paths([ONE, TWO], given.split(), root)
    assert caught.value.next == "Name a folder, a file or a test in tests/a, tests/b."


@pytest.mark.parametrize("given", ["tests/a tests/b/test_b.py", "-k tests", "--unknown tests", "tests/none.py", "-v"])
def test_what_is_no_such_path_is_not(given: str, root: Path) -> None:
    """What does not exist is for pytest to tell."""
    arguments.check_paths([ONE, TWO], given.split(), root)


def test_a_commands_arguments_are_its_own(root: Path) -> None:
    """Where no package is pytest's, nothing is known of them."""
    arguments.check_paths([GO], ["tests"], root)
