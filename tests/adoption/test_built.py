"""What is installed from the index: the wheel's contents, its life in an environment of its own, and the source archive."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from tests.adoption.adopter import Adopter, unpack
from tests.builders import HARNESS_ROOT

GENERATED = re.compile(r"(^|/)(\.venv|\.stack|__pycache__|\.\w+_cache|\.hypothesis|\.coverage|\.env|last\.json)(/|$)|\.pyc$")


def committed() -> set[str]:
    """Return the files of the source tree as git lists them, those not yet committed too."""
    git = shutil.which("git")
    assert git is not None, "git is not installed"
    argv = [git, "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(argv, cwd=HARNESS_ROOT, capture_output=True, text=True, check=True, timeout=30)
    return {line for line in listed.stdout.splitlines() if (HARNESS_ROOT / line).is_file()}


def test_the_wheel_holds_what_it_needs_and_nothing_else(built: dict[str, Path]) -> None:
    """The package's modules with their types, the bootstrap script that init writes, and the metadata."""
    names = set(zipfile.ZipFile(built["wheel"]).namelist())
    modules = {path.relative_to(HARNESS_ROOT).as_posix() for path in (HARNESS_ROOT / "harness").glob("*.py")}
    about = {name for name in names if ".dist-info/" in name}
    assert names - about == modules | {"harness/bootstrap-stack.sh", "harness/py.typed"}
    assert {name.partition("/")[2] for name in about} == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}


def test_the_source_archive_holds_the_repository(built: dict[str, Path]) -> None:
    """Everything that is committed, and nothing that a run left."""
    with tarfile.open(built["archive"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names - {"PKG-INFO"} == committed()
    assert [name for name in names if GENERATED.search(name)] == []


def test_the_wheel_works_in_an_environment_of_its_own(outside: Path, adopter: Adopter) -> None:
    """init, stack-up and a run, without this worktree: the script comes out of the wheel, the plugin loads by itself."""
    adopter.write("pyproject.toml", "")
    adopter.write("migrations/0001_item.sql", "CREATE TABLE item(id int PRIMARY KEY);\n")
    adopter.write(
        "tests/test_item.py", "def test_item(test_connection):\n    assert test_connection.execute('SELECT * FROM item').fetchall() == []\n"
    )
    harness, inv = outside / "bin/harness", outside / "bin/inv"
    adopter.run(harness, "init").expect(0)
    assert adopter.read("test/bootstrap-stack.sh") == (HARNESS_ROOT / "test/bootstrap-stack.sh").read_text()
    assert "pgharness @ file://" in adopter.read("test/bootstrap-requirements.txt")
    adopter.run("test/bootstrap-stack.sh", "--python", outside).expect(0)
    adopter.run(inv, "test").expect(0, "all fine: 1 test")
    where = adopter.run(outside / "bin/python", "-c", "import harness; print(harness.__file__)").expect(0).stdout
    assert str(outside) in where
    adopter.run(harness, "stack-down").expect(0)


def test_the_source_archive_passes_its_own_tests(built: dict[str, Path], tmp_path: Path) -> None:
    """A distribution's packager unpacks it and runs what needs no server."""
    root = unpack(built["archive"], tmp_path / "unpacked")
    tests = ["tests/unit/test_sql.py", "tests/unit/test_results.py", "tests/unit/test_verdict.py"]
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = Adopter(tmp_path / "packager").run(*argv, cwd=root, env={"PYTHONPATH": str(root)}).expect(0)
    assert re.search(r"\d+ passed", done.stdout)
