"""RUN-05: a person sees what pytest prints, as it is printed; a file gets no colours; nothing is lost and nothing blocks."""

from __future__ import annotations

import json
import os
import pty
import select
import shlex
import subprocess
import time
from pathlib import Path

import pytest
from junitparser import JUnitXml

from tests.run.project import Project

PASSING = "def test_ok(): pass\n"


def in_terminal(project: Project, *arguments: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Run in a pseudo-terminal; return exit code and all that it showed."""
    leader, follower = pty.openpty()
    given = {"TERM": "xterm-256color", "COLUMNS": "150", **(env or {})}
    process = project.start(*arguments, env=given, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    shown = b""
    while True:
        try:
            block = os.read(leader, 1 << 16)
        except OSError:
            break
        if not block:
            break
        shown += block
    os.close(leader)
    return process.wait(30), shown.decode()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a project with one passing package."""
    project = Project(tmp_path / "p", "tests/it")
    project.package("tests/it", PASSING)
    return project


def test_in_a_terminal_the_child_believes_in_one(project: Project) -> None:
    """Colours as when pytest is run by hand, and a debugger could ask."""
    project.package("tests/it", "import sys\ndef test_it(): assert sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()\n")
    code, shown = in_terminal(project, "--", "-s")
    assert code == 0
    assert "\x1b[32m" in shown


def test_a_file_gets_no_escape_sequence(project: Project) -> None:
    """Neither ours nor the child's."""
    assert "\x1b" not in project.run().expect(0).output
    assert "\x1b" not in project.run("--quiet").expect(0).output


def test_progress_moves_in_a_quiet_terminal(project: Project) -> None:
    """Position, tests, failures, time so far and time expected; at the end only the lines that a file would get."""
    (project.root / "test/.stack").mkdir(parents=True)
    last = {"packages": [{"package": "tests/it", "status": "passed", "seconds": 75.0}]}
    (project.root / "test/.stack/last.json").write_text(json.dumps(last))
    project.package("tests/it", "import time\ndef test_1(): assert 0\ndef test_2(): time.sleep(1.5)\ndef test_3(): pass\n")
    code, shown = in_terminal(project, "--quiet")
    assert code == 1
    assert "[1/1] tests/it: 1 of 3 tests, 1 failed" in shown
    assert "of about 1 min 15 s" in shown
    assert "tests/it/test_it.py" in shown


def test_lines_say_position_and_expectation(tmp_path: Path) -> None:
    """In a file the line before a package says how far the run is, and what the last run took."""
    project = Project(tmp_path / "p", "tests/a", "tests/b")
    project.package("tests/a", "def test_bad(): assert 0\n")
    project.package("tests/b", PASSING)
    project.write("test/.stack/last.json", json.dumps({"packages": [{"package": "tests/b", "status": "passed", "seconds": 12.0}]}))
    done = project.run().expect(1)
    assert "[1/2] tests/a\n" in done.stdout
    assert "[2/2] tests/b (about 12.0 s, " in done.stdout
    assert "1 not fine so far)\n" in done.stdout


def test_a_line_is_seen_while_the_test_runs(project: Project) -> None:
    """Within a second, not at the end."""
    project.package("tests/it", "import time\ndef test_it():\n    print('HELLO', flush=True)\n    time.sleep(30)\n")
    with project.start("--", "-s") as process:
        assert process.stdout is not None
        deadline, shown = time.monotonic() + 20, b""
        while b"HELLO" not in shown and time.monotonic() < deadline:
            ready, _, _ = select.select([process.stdout], [], [], 1)
            shown += os.read(process.stdout.fileno(), 4096) if ready else b""
        assert b"HELLO" in shown
        assert process.poll() is None
        process.terminate()
        process.communicate(timeout=20)


NOISE = "import os, sys\ndef test_it():\n    for _ in range(50):\n        os.write(1, b'o' * 999_999 + b'\\n')\n        os.write(2, b'e' * 999_999 + b'\\n')\n{end}"


@pytest.mark.parametrize("flags", [[], ["--quiet"]], ids=["streamed", "quiet"])
def test_a_hundred_megabytes_pass_without_loss(project: Project, tmp_path: Path, flags: list[str]) -> None:
    """Streamed, or captured and shown for a package that is not fine."""
    project.package("tests/it", NOISE.format(end="    assert not sys.argv\n"))
    paths = [tmp_path / "stdout", tmp_path / "stderr"]
    with paths[0].open("wb") as stdout, paths[1].open("wb") as stderr:
        assert project.start(*flags, "--", "-s", stdout=stdout, stderr=stderr).wait(60) == 1
    text = paths[0].read_bytes() + paths[1].read_bytes()
    assert text.count(b"o" * 999_999 + b"\n") == 50
    assert text.count(b"e" * 999_999 + b"\n") == 50


def test_quiet_shows_the_output_of_what_is_not_fine_alone(tmp_path: Path) -> None:
    """A fine package is one line."""
    project = Project(tmp_path / "p", "tests/a", "tests/b")
    project.package("tests/a", "def test_bad():\n    print('LOOK')\n    assert 0\n")
    project.package("tests/b", "def test_ok(): print('NOISE')\n")
    done = project.run("--quiet", "--", "-rP").expect(1, "LOOK")
    assert "NOISE" not in done.output


@pytest.mark.parametrize("streams", ["</dev/null", "<&-", "<&- >&- 2>&-", "<&- >&- 2>&- --quiet", "2>&- --quiet"])
def test_streams_may_be_closed(project: Project, streams: str) -> None:
    """A run from a hook or a daemon has no terminal and perhaps no streams; the result is the same."""
    command = f"{shlex.join(project.argv())} --json document.json {streams}"
    project.package("tests/it", "def test_ok(): pass\ndef test_bad(): assert 0\n")
    done = subprocess.run(["/bin/sh", "-c", command], cwd=project.root, env=project.environment(), check=False, timeout=60)
    assert done.returncode == 1
    (package,) = json.loads((project.root / "document.json").read_text())["packages"]
    assert [test["outcome"] for test in package["tests"]] == ["passed", "failed"]


def test_a_reader_that_goes_away_does_not_stop_the_run(project: Project) -> None:
    """`inv test | head -1`: our lines have nowhere to go, the tests still run."""
    project.package("tests/it", "import pathlib\ndef test_it(): pathlib.Path('ran').touch()\n")
    command = f"({shlex.join(project.argv('--quiet', '--json', 'document.json'))}; echo $? > code) | true"
    subprocess.run(["/bin/sh", "-c", command], cwd=project.root, env=project.environment(), check=True, timeout=60)
    assert (project.root / "ran").exists()
    assert (project.root / "code").read_text() == "0\n"


def test_one_junit_file_tells_packages_apart(tmp_path: Path) -> None:
    """The same file and test name in two packages are two entries, and a killed package has an error entry."""
    project = Project(tmp_path / "p", "tests/a", "tests/b", "tests/killed")
    for name in ("a", "b"):
        project.package(f"tests/{name}", PASSING)
    project.package("tests/killed", "import os\ndef test_it(): os.kill(os.getpid(), 9)\n")
    project.run("--junit", "out.xml").expect(1)
    suites = {suite.name: suite for suite in JUnitXml.fromfile(str(project.root / "out.xml"))}
    assert [(name, suite.tests, suite.errors) for name, suite in suites.items()] == [
        ("tests/a", 1, 0),
        ("tests/b", 1, 0),
        ("tests/killed", 2, 2),
    ]
    assert "killed by SIGKILL" in (project.root / "out.xml").read_text()


@pytest.mark.parametrize("flag", ["--junit", "--html", "--json"])
def test_a_report_that_cannot_be_written_is_an_error(project: Project, flag: str) -> None:
    """Its absence would be taken for a run without failures."""
    done = project.run(flag, "no/such/folder/file").expect(2)
    assert "cannot be written" in done.stderr


def test_a_document_on_stdout_is_alone_there(project: Project) -> None:
    """With --json - the children's output too goes to stderr."""
    done = project.run("--json", "-").expect(0)
    assert json.loads(done.stdout)["packages"][0]["status"] == "passed"
    assert "test session starts" in done.stderr


def test_every_printed_command_reads_back(tmp_path: Path) -> None:
    """The rerun command of a failure, split by a shell's rules and given to us, runs that test alone and fails again."""
    project = Project(tmp_path / "p", "tests/odd name's")
    project.package(
        "tests/odd name's",
        "import pytest\n@pytest.mark.parametrize('x', ['a b', \"it's\", '$HOME', '`id`', 'a::b', '[c]'])\ndef test_bad(x): assert 0\n",
    )
    lines = [line.strip() for line in project.run("--quiet").expect(1).stdout.splitlines() if line.startswith("  inv test ")]
    assert len(lines) == 6
    for line in (lines[1], lines[4]):
        argv = shlex.split(line)
        assert argv[:4] == ["inv", "test", "--package", "tests/odd name's"]
        (result,) = project.packages(*argv[4:], code=1).values()
        assert [test["id"].partition("::")[2] for test in result["tests"]] == [argv[-1]]


def test_github_gets_groups_and_a_step_summary(project: Project) -> None:
    """Each package's output folds away."""
    lines = project.run(env={"GITHUB_ACTIONS": "true"}).expect(0).stdout.splitlines()
    assert lines.index("::group::tests/it") < lines.index("[1/1] tests/it") < lines.index("::endgroup::")
