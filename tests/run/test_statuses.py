"""RUN-01: each package has a status of its own, and the run fails unless all are fine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.run.project import Completed, Project

PASSING = "def test_ok(): pass\n"
FAILING = "def test_bad(): assert 1 == 2\n"

STATUSES = {
    "ok": (PASSING, "passed", 0, None),
    "failing": (FAILING, "failed", 1, None),
    "broken-fixture": ("import pytest\n@pytest.fixture\ndef f(): raise OSError('no')\ndef test_it(f): pass\n", "failed", 1, None),
    "empty": ("", "empty", 5, None),
    "no-conftest": (PASSING, "error", 4, None),
    "no-module": ("import no_such_module\n", "error", 2, None),
    "skipped": ("import pytest\n@pytest.mark.skip(reason='not today')\ndef test_it(): pass\n", "skipped", 0, None),
    "module-skipped": ("import pytest\npytest.skip('not here', allow_module_level=True)\n", "skipped", 5, None),
    "killed": ("import os\ndef test_ok(): pass\ndef test_it(): os.kill(os.getpid(), 9)\n", "crashed", 137, "SIGKILL"),
    "segfault": ("import os, signal\ndef test_it(): os.kill(os.getpid(), signal.SIGSEGV)\n", "crashed", 139, "SIGSEGV"),
    "os-exit": ("import os\ndef test_it(): os._exit(0)\ndef test_later(): assert False\n", "crashed", 0, None),
    "sys-exit": ("import sys\ndef test_it(): sys.exit(0)\n", "failed", 1, None),
    "keyboard": ("def test_it(): raise KeyboardInterrupt\n", "error", 2, None),
    "pytest-exit": ("import pytest\ndef test_it(): pytest.exit('enough', returncode=0)\n", "error", 0, None),
    "pytest-exit-between": (
        "import pytest\n@pytest.fixture(autouse=True)\ndef f():\n    yield\n    pytest.exit('enough', returncode=0)\ndef test_1(): pass\ndef test_2(): pass\n",
        "error",
        0,
        None,
    ),
    "xfailed": ("import pytest\n@pytest.mark.xfail\ndef test_it(): assert 0\n", "passed", 0, None),
    "strict-xpass": ("import pytest\n@pytest.mark.xfail(strict=True)\ndef test_it(): pass\n", "failed", 1, None),
}


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[Completed, dict[str, Any]]:
    """Return one run of a package of every kind: what it printed, and its document."""
    project = Project(tmp_path_factory.mktemp("statuses") / "p", *(f"tests/{name}" for name in STATUSES))
    for name, (source, *_) in STATUSES.items():
        project.package(f"tests/{name}", source)
    project.write("tests/no-conftest/conftest.py", "import no_such_module\n")
    done = project.run("--json", "document.json")
    return done, json.loads((project.root / "document.json").read_text())


@pytest.mark.parametrize("name", STATUSES)
def test_every_end_has_its_status(everything: tuple[Completed, dict[str, Any]], name: str) -> None:
    """What pytest's exit code, or the lack of one, says is one word, and only fine ones let the run succeed."""
    _, status, code, signal = STATUSES[name]
    (result,) = [package for package in everything[1]["packages"] if package["package"] == f"tests/{name}"]
    assert (result["status"], result["exit"], result["signal"]) == (status, code, signal)
    assert result["fine"] == (status in ("passed", "skipped"))


def test_all_packages_run_and_each_has_a_line(everything: tuple[Completed, dict[str, Any]]) -> None:
    """One failing package does not keep the others from running; the summary has a line for each."""
    done = everything[0].expect(1, "crashed (killed by SIGKILL)", "crashed (killed by SIGSEGV)")
    summary = done.stdout.rpartition("\n\ntests/ok: ")[2]
    for name, (_, status, *_) in STATUSES.items():
        assert f"tests/{name}: {status}" in f"tests/ok: {summary}"


def test_a_folder_that_is_not_there_is_missing(tmp_path: Path) -> None:
    """A package of which only bytecode is left is as missing as one that is gone."""
    project = Project(tmp_path / "p", "tests/gone", "tests/left", "tests/ok")
    project.write("tests/left/sub/__pycache__/test_it.cpython-311.pyc", b"")
    project.package("tests/ok", PASSING)
    found = project.packages(code=1)
    assert {name: package["status"] for name, package in found.items()} == {
        "tests/gone": "missing",
        "tests/left": "missing",
        "tests/ok": "passed",
    }


def test_a_module_that_cannot_be_imported_says_why_in_a_line(tmp_path: Path) -> None:
    """The reason is the error, not the way to it."""
    project = Project(tmp_path / "p", "tests/a")
    project.package("tests/a", "import no_such_module\n")
    assert [test["reason"] for test in project.packages(code=1)["tests/a"]["tests"]] == [
        "ModuleNotFoundError: No module named 'no_such_module'"
    ]


def test_fail_fast_leaves_the_rest_out(tmp_path: Path) -> None:
    """After the first package that is not fine, the others are not-run, and say so."""
    project = Project(tmp_path / "p", "tests/a", "tests/b", "tests/c")
    for name, source in (("a", PASSING), ("b", FAILING), ("c", PASSING)):
        project.package(f"tests/{name}", source)
    assert [package["status"] for package in project.packages("--fail-fast", code=1).values()] == ["passed", "failed", "not-run"]


def test_an_empty_package_is_fine_only_where_that_is_allowed(tmp_path: Path) -> None:
    """An honest empty package is declared."""
    project = Project(tmp_path / "p", '{ path = "tests/none", allow_empty = true }')
    project.package("tests/none", "")
    assert project.packages(code=0)["tests/none"]["status"] == "empty"


def test_a_selection_may_leave_packages_empty_but_not_all(tmp_path: Path) -> None:
    """With `-- -k x` a package without a match is fine if another ran a test; if none did, no test ran."""
    project = Project(tmp_path / "p", "tests/a", "tests/b")
    project.package("tests/a", "def test_apple(): pass\n")
    project.package("tests/b", "def test_pear(): pass\n")
    assert [package["status"] for package in project.packages("--", "-k", "apple", code=0).values()] == ["passed", "empty"]
    project.run("--", "-k", "plum").expect(1, "no test ran")


@pytest.mark.parametrize("arguments", [["-v"], ["--tb=short"], ["--durations", "3", "-rA"]])
def test_what_chooses_no_tests_excuses_no_empty_package(tmp_path: Path, arguments: list[str]) -> None:
    """A look at more output is no reason for fewer tests."""
    project = Project(tmp_path / "p", "tests/a", "tests/b")
    project.package("tests/a", PASSING)
    project.package("tests/b", "")
    assert [package["status"] for package in project.packages("--", *arguments, code=1).values()] == ["passed", "empty"]


@pytest.mark.parametrize("form", [["--deselect", "{}"], ["--deselect={}"]])
def test_a_test_left_out_by_its_id_leaves_out_nothing_else(tmp_path: Path, form: list[str]) -> None:
    """The id is an option's value, and no choice of paths."""
    project = Project(tmp_path / "p", "tests/a", "tests/b")
    project.package("tests/a", PASSING + FAILING)
    project.package("tests/b", FAILING)
    project.write("pytest.ini", "[pytest]\ntestpaths = tests/a\n")
    found = project.packages("--", *(part.format("tests/a/test_it.py::test_bad") for part in form), code=1)
    assert {name: (package["status"], len(package["tests"])) for name, package in found.items()} == {
        "tests/a": ("passed", 1),
        "tests/b": ("failed", 1),
    }


def test_tests_that_were_collected_and_not_run_are_no_pass(tmp_path: Path) -> None:
    """Whatever keeps pytest from running them, and also where an empty package would be fine."""
    project = Project(tmp_path / "p", '{ path = "tests/a", allow_empty = true }', "tests/b")
    project.package("tests/a", FAILING)
    project.write("tests/a/conftest.py", "def pytest_runtestloop(): return True\n")
    project.package("tests/b", PASSING)
    done = project.run("--", "-v").expect(1, "stopped at test 0 of 1, with exit code 0")
    assert "tests/a: error" in done.stdout


def test_a_failure_without_a_failing_test_says_so_and_is_in_the_junit_file(tmp_path: Path) -> None:
    """As of a coverage that is too low, or of a command that fails after its tests."""
    project = Project(tmp_path / "p", "tests/a", '{ path = "tests/go", command = ["sh", "run.sh"], junit = "out.xml" }')
    project.package("tests/a", PASSING)
    project.write("tests/a/conftest.py", "def pytest_sessionfinish(session): session.exitstatus = 1\n")
    project.write("tests/go/run.sh", "echo '<testsuite><testcase name=\"ok\"/></testsuite>' > out.xml; exit 3\n")
    project.run("--junit", "all.xml").expect(1, "failed: tests/a: exit code 1, and no test failed", "failed: tests/go: exit code 3")
    text = (project.root / "all.xml").read_text()
    assert [re.search(rf'<testsuite name="{name}"[^>]* errors="(.)"', text)[1] for name in ("tests/a", "tests/go")] == ["1", "1"]  # type: ignore[index]  # each is there


def test_half_a_character_in_a_reason_spoils_nothing(tmp_path: Path) -> None:
    """A file's undecodable name is text to Python, and to no encoding."""
    project = Project(tmp_path / "p", "tests/a")
    project.package("tests/a", "import pytest\ndef test_it(): pytest.skip('no file \\udce9.txt')\ndef test_ok(): pass\n")
    reasons = [test["reason"] for test in project.packages("--junit", "all.xml", "--html", "all.html", code=0)["tests/a"]["tests"]]
    assert reasons == ["no file \udce9.txt", ""]
    project.run("--json", "-").expect(0, '"reason": "no file \\udce9.txt"')


def test_the_shells_python_settings_make_no_assertion_void(tmp_path: Path) -> None:
    """Nor wait for somebody to type."""
    project = Project(tmp_path / "p", "tests/a")
    project.write("tests/a/checks.py", "def check(): assert 1 == 2\n")
    project.package("tests/a", "from checks import check\ndef test_it(): check()\n")
    assert project.packages(code=1, env={"PYTHONOPTIMIZE": "1", "PYTHONINSPECT": "1"})["tests/a"]["status"] == "failed"


@pytest.mark.parametrize("name", ["harness/__init__.py", "harness.py"])
def test_a_package_of_our_name_is_told(tmp_path: Path, name: str) -> None:
    """The project's own comes first for pytest, which then has no plugin of ours."""
    project = Project(tmp_path / "p", "tests/a")
    project.package("tests/a", PASSING)
    project.write(name, "")
    project.run().expect(2, f"{str(project.root / name)!r} hides the harness from pytest", "Rename it")


def test_a_path_after_the_dashes_runs_that_alone(tmp_path: Path) -> None:
    """A test named after `--` replaces its package's folder, and starts no other package."""
    project = Project(tmp_path / "p", "tests/a", "tests/b")
    project.package("tests/a", "import pytest\n@pytest.mark.parametrize('x', ['it\\'s', 'a::b', '[c]'])\ndef test_apple(x): pass\n")
    project.package("tests/b", PASSING)
    for parameter in ("it's", "a::b", "[c]"):
        found = project.packages("--", f"tests/a/test_it.py::test_apple[{parameter}]", code=0)
        assert [test["id"] for test in found["tests/a"]["tests"]] == [f"tests/a::tests/a/test_it.py::test_apple[{parameter}]"]
        assert (found["tests/b"]["status"], found["tests/b"]["exit"]) == ("empty", None)


def test_a_package_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    """A time-out names the test at work, and the next package runs."""
    project = Project(tmp_path / "p", '{ path = "tests/slow", timeout = 5 }', "tests/ok", toml="[run]\ngrace = 0.5\n")
    project.package("tests/slow", "import time\ndef test_quick(): pass\ndef test_slow(): time.sleep(60)\n")
    project.package("tests/ok", PASSING)
    found = project.packages(code=1)
    assert [package["status"] for package in found.values()] == ["timeout", "passed"]
    assert [(test["id"].rpartition("::")[2], test["outcome"]) for test in found["tests/slow"]["tests"]] == [
        ("test_quick", "passed"),
        ("test_slow", "error"),
    ]


def test_ids_are_as_the_project_root_sees_them(tmp_path: Path) -> None:
    """A package with a pytest.ini of its own has ids that can be run again from the root."""
    project = Project(tmp_path / "p", "tests/own")
    project.package("tests/own", FAILING)
    project.write("tests/own/pytest.ini", "[pytest]\n")
    (test,) = project.packages(code=1)["tests/own"]["tests"]
    assert test["id"] == "tests/own::tests/own/test_it.py::test_bad"
    assert project.packages("--", test["id"].partition("::")[2], code=1)["tests/own"]["status"] == "failed"


COMMANDS = {
    "zero": ("exit 0", "passed", 0),
    "one": ("exit 1", "failed", 1),
    "five": ("exit 5", "failed", 5),
    "killed": ("kill -9 $$", "crashed", 137),
}


def test_a_command_counts_by_its_exit_code(tmp_path: Path) -> None:
    """Exit code 5 has no special meaning for what is not pytest."""
    tables = [f'{{ path = "tests/{name}", command = ["sh", "-c", {json.dumps(script)}] }}' for name, (script, *_) in COMMANDS.items()]
    project = Project(tmp_path / "p", *tables)
    for name in COMMANDS:
        project.write(f"tests/{name}/main.go", "")
    found = {name: (result["status"], result["exit"]) for name, result in project.packages(code=1).items()}
    assert found == {f"tests/{name}": (status, code) for name, (_, status, code) in COMMANDS.items()}


def test_a_command_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """The message names the program."""
    project = Project(tmp_path / "p", '{ path = "tests/go", command = ["no-such-program"] }')
    project.write("tests/go/main.go", "")
    project.run().expect(1, "no-such-program cannot be started: No such file or directory")


JUNIT = """<testsuites><testsuite name="s"><testcase classname="pkg" name="TestOk" time="0.25"/>
<testcase classname="pkg" name="TestBad"><failure message="2 is not 3">trace</failure></testcase>
<testcase classname="pkg" name="TestSkip"><skipped message="TEST_DATABASE_URL is not set"/></testcase></testsuite></testsuites>"""


def test_a_commands_junit_file_is_its_tests(tmp_path: Path) -> None:
    """The file's tests are counted, its failures fail a command that exits 0, and the one of an earlier run is not read."""
    project = Project(tmp_path / "p", '{ path = "tests/go", command = ["sh", "run.sh"], junit = "out.xml" }')
    project.write("tests/go/run.sh", f"cat > out.xml <<'EOF'\n{JUNIT}\nEOF\n")
    result = project.packages(code=1)["tests/go"]
    assert result["status"] == "failed"
    assert [(test["id"], test["outcome"], test["reason"]) for test in result["tests"]] == [
        ("tests/go::pkg::TestOk", "passed", ""),
        ("tests/go::pkg::TestBad", "failed", "2 is not 3"),
        ("tests/go::pkg::TestSkip", "skipped", "TEST_DATABASE_URL is not set"),
    ]
    assert result["skipped_for"] == {"TEST_DATABASE_URL": 1}
    project.write("tests/go/run.sh", "exit 0\n")
    project.run().expect(1, "tests/go: error (it did not write its JUnit file out.xml)")
    (project.root / "tests/go/out.xml").mkdir()
    project.run().expect(1, "tests/go: error (its JUnit file out.xml is a folder)")
    (project.root / "tests/go/out.xml").rmdir()
    project.write("tests/go/run.sh", "echo '<testsuites' > out.xml\n")
    project.run().expect(1, "tests/go: error (its JUnit file out.xml cannot be read")


def test_skips_for_want_of_the_own_variable_fail_where_it_is_strict(tmp_path: Path) -> None:
    """The package's own variable fails the run with --strict, in CI, and always where harness.toml says so."""
    project = Project(tmp_path / "p", "tests/own")
    project.package(
        "tests/own",
        "import os\nfrom harness.plugin import require_database\ndef test_it():\n    os.environ['TEST_DATABASE_URL'] = ''\n    require_database('TEST_DATABASE_URL')\n",
    )
    result = project.packages(code=0)["tests/own"]
    assert (result["status"], result["skipped_for"]) == ("skipped", {"TEST_DATABASE_URL": 1})
    project.run("--strict").expect(1, "1 skipped for want of TEST_DATABASE_URL")
    project.run(env={"CI": "true"}).expect(1)
    project.settings('[packages]\ntest = ["tests/own"]\n[run]\nstrict = "never"\n')
    project.run(env={"CI": "true"}).expect(0)


def test_skips_for_want_of_the_other_variable_are_counted(tmp_path: Path) -> None:
    """A test package sees no e2e variable; its tests that ask for one skip, aloud and without failing the run."""
    project = Project(tmp_path / "p", "tests/other")
    project.package("tests/other", "def test_it(e2e_database_url): pass\ndef test_own(test_database_url): pass\n")
    result = project.packages("--strict", code=0)["tests/other"]
    assert (result["status"], result["skipped_for"]) == ("passed", {"E2E_DATABASE_URL": 1})
    assert result["tests"][0]["reason"].startswith("E2E_DATABASE_URL is not set; run test/bootstrap-stack.sh")
