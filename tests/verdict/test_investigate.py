"""verify and bisect end to end: every ending, and what is printed can be run."""

from __future__ import annotations

import json
import shlex
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.builders import SampleRepository, in_run_table
from tests.verdict.projects import FAIL, KINDS, Project

ROW = KINDS["row"]


@pytest.fixture
def project(sample_repository: SampleRepository) -> Project:
    """Return a project of five clean packages."""
    return Project(sample_repository, 0, 5, 0)


def plant(project: Project, place: int, sql: str) -> None:
    """Have a package run this."""
    project.repository.write(f"{project.names[place]}/run.sql", sql + "\n")


def flicker(project: Project, place: int) -> None:
    """Have a package fail every other time."""
    script = "test -e seen && rm seen && exit 1\ntouch seen\n"
    project.repository.write(f"{project.names[place]}/run.sh", script)


def test_bisect_ends_with_a_command_that_reproduces(project: Project) -> None:
    """The culprit, its rows, and one command; that command fails in the same package."""
    plant(project, 1, ROW.pollute)
    plant(project, 3, FAIL.format(condition=ROW.condition))
    done = project.repository.run("bisect", "--package", "tests/p03").expect(0)
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        "tests/p03 has 3 package(s) before it; one polluter takes at most 5 runs",
        "run 1: after nothing: passes",
        "run 2: after tests/p00, tests/p01, tests/p02: fails",
    ]
    assert lines[-5:] == [
        "tests/p03 fails after tests/p01; alone it passes (5 runs)",
        "tests/p01 left: public.item 20 → 21 rows (1 written)",
        "  public.item: (21,left,0)",
        "  sequence public.item_id_seq: 20 → 21",
        "inv test --package tests/p01 --package tests/p03",
    ]
    again = project.repository.run(*shlex.split(lines[-1])[1:]).expect(1)
    assert "not fine: tests/p03" in again.stdout


def test_bisect_takes_one_test_by_its_id(sample_repository: SampleRepository) -> None:
    """One test of a package is asked about while another one of it always fails; an id that is not there is exit 2."""
    project = Project(sample_repository, 0, 2, 0)
    settings = '[databases]\napplication = "shop"\ntest = "shop_test"\n[[migrations]]\nstream = "core"\ndirectory = "migrations/core"\n'
    project.repository.settings(settings + "[packages]\ntest = [{ path = 'tests/p00', command = ['sh', 'run.sh'] }, 'tests/orders']\n")
    plant(project, 0, ROW.pollute)
    project.repository.package(
        "tests/orders",
        "def test_no_left_item(test_connection):\n    assert test_connection.execute(\"SELECT * FROM item WHERE name = 'left'\").fetchall() == []\n\n"
        "def test_other():\n    assert False\n",
        name="test_orders.py",
    )
    env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    victim = "tests/orders::tests/orders/test_orders.py::test_no_left_item"
    document = project.repository.root / "found.json"
    project.repository.run("bisect", "--test", victim, "--json", str(document), env=env).expect(0)
    found = json.loads(document.read_text())
    assert (found["victim"], found["verdict"], found["polluters"]) == (victim, "polluter", ["tests/p00"])
    assert found["command"] == "inv test --package tests/p00 --package tests/orders"
    done = project.repository.run("bisect", "--package", "tests/orders", env=env).expect(0)
    assert "tests/orders fails alone" in done.stdout
    assert (
        "its tests that fail alone: tests/orders::tests/orders/test_orders.py::test_other; ask about another one with --test ID"
        in done.stdout
    )
    project.repository.run("bisect", "--test", victim + "_gone", env=env).expect(2, "there is no test", "test_no_left_item")


def test_bisect_says_when_its_premises_do_not_hold(project: Project) -> None:
    """A package that fails alone, one that does not fail, one that flickers: each is an answer, and nobody is blamed."""
    plant(project, 2, "SELECT 1 / 0;")
    flicker(project, 3)
    alone = project.document("bisect", "--package", "tests/p02", code=0)
    assert (alone["verdict"], alone["polluters"], len(alone["runs"]), alone["command"]) == ("fails-alone", [], 1, "bisect")
    fine = project.document("bisect", "--package", "tests/p01", code=0)
    assert (fine["verdict"], fine["polluters"], len(fine["runs"])) == ("does-not-fail", [], 2)
    flaky = project.document("bisect", "--package", "tests/p03", "--repeat", "3", code=0)
    assert (flaky["verdict"], flaky["polluters"], len(flaky["runs"])) == ("flaky", [], 2)
    first = project.document("bisect", "--package", "tests/p00", code=0)
    assert (first["verdict"], len(first["runs"])) == ("does-not-fail", 1)


def test_an_interrupted_bisect_leaves_what_it_knows(project: Project) -> None:
    """Ctrl-C ends it with 130, the candidates left and the runs so far; no process of it stays."""
    plant(project, 0, ROW.pollute)
    project.repository.write("tests/p04/run.sh", "test -e twice && sleep 60\ntest -e once && { touch twice; exit 1; }\ntouch once\n")
    document = project.repository.root / "found.json"
    with project.repository.start("bisect", "--package", "tests/p04", "--json", str(document)) as process:
        assert process.stdout is not None
        deadline = time.monotonic() + 60
        for line in process.stdout:
            assert time.monotonic() < deadline
            if line.startswith("run 2:"):
                break
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        output = process.stdout.read()
        assert process.wait(30) == 130
    assert "interrupted after 2 run(s): the culprit is among tests/p00, tests/p01, tests/p02, tests/p03" in output
    found = json.loads(document.read_text())
    assert (found["verdict"], found["polluters"], found["exit"], found["error"]["code"]) == ("interrupted", [], 130, 130)
    assert [run["fails"] for run in found["runs"]] == [False, True]


USAGE = {
    "neither": (["bisect"], "either --package or --test"),
    "both": (["bisect", "--package", "tests/p00", "--test", "tests/p00::x"], "either --package or --test"),
    "no such package": (["bisect", "--package", "tests/none"], "has no package 'tests/none'"),
    "no such package of a test": (["bisect", "--test", "tests/none::x"], "there is no package 'tests/none'"),
    "no repetition": (["bisect", "--package", "tests/p00", "--repeat", "0"], "--repeat is '0'"),
    "no seed": (["verify", "--shuffle", "x"], "--shuffle is 'x'"),
    "no shard": (["test", "--shard", "3/2"], "--shard is '3/2'"),
    "no fraction": (["test", "--shard", "one"], "--shard is 'one'"),
    "durations alone": (["test", "--durations", "last.json"], "--durations balances shards"),
    "no durations file": (["test", "--shard", "1/2", "--durations", "none.json"], "'none.json' cannot be read"),
    "no results file": (["test", "--shard", "1/2", "--durations", "harness.toml"], "'harness.toml' is no results file"),
    "isolated and not reset": (["test", "--isolate", "--no-reset"], "--isolate gives every package pristine databases"),
    "parallel": (["verify", "--", "-n", "4"], "serial"),
    "nothing to merge": (["report-merge"], "no files to join"),
    "nowhere to merge to": (["report-merge", "a.xml"], "nothing says where to"),
}


def test_what_cannot_be_asked_is_exit_2(project: Project) -> None:
    """Each wrong question names the flag, and nothing is run."""
    for arguments, phrase in USAGE.values():
        project.repository.run(*arguments).expect(2, phrase)
    assert project.repository.cluster is not None
    assert project.repository.cluster.databases() == ["shop"]


def test_verify_finds_nothing_where_two_runs_are_alike(project: Project) -> None:
    """Exit 0, two test documents, no difference; polluted or not, each run begins on pristine databases."""
    plant(project, 1, ROW.pollute)
    document = project.document("verify", "--shuffle", "4", code=0)
    assert document["differences"] == []
    runs = document["runs"]
    assert [run["pristine"] for run in runs] == [True, True]
    names = [[package["package"] for package in run["packages"]] for run in runs]
    assert names[0] == project.names
    assert names[1] != project.names
    assert sorted(names[1]) == project.names


def test_verify_names_what_depends_on_the_order(project: Project) -> None:
    """Exit 1, what differs, the residue that stood before it in one run only, and a bisect that finds it."""
    plant(project, 3, ROW.pollute)
    plant(project, 1, FAIL.format(condition=ROW.condition))
    seed = next(seed for seed in range(100) if _stands_before("tests/p03", "tests/p01", project.names, seed))
    done = project.repository.run("verify", "--shuffle", str(seed)).expect(1)
    lines = done.stdout.splitlines()
    start = lines.index("tests/p01: passed, then failed")
    assert lines[start + 1 : start + 3] == [
        "  before it in run 2 only: tests/p03, which left public.item 20 → 21 rows (1 written)",
        f"  inv bisect --package tests/p01 --shuffle {seed}",
    ]
    assert lines[-1] == "1 difference(s) between the two runs"
    found = project.repository.run(*shlex.split(lines[start + 2])[1:]).expect(0).stdout.splitlines()
    assert found[-1] == "inv test --package tests/p03; inv test --no-reset --package tests/p01"
    first, second = (shlex.split(command)[1:] for command in found[-1].split("; "))
    project.repository.run(*first).expect(0)
    project.repository.run(*second).expect(1, "not fine: tests/p01")


def _stands_before(one: str, other: str, names: list[str], seed: int) -> bool:
    from harness.verdict import shuffled

    order = shuffled(names, seed)
    return order.index(one) < order.index(other)


def test_verify_says_when_the_order_is_not_to_blame(project: Project) -> None:
    """The same packages before it, the same residue, another outcome: it flickers."""
    flicker(project, 2)
    done = project.repository.run("verify").expect(1)
    assert "tests/p02: passed, then failed\n  the same packages ran before it, and left the same: it flickers by itself" in done.stdout


def test_residue_is_told_as_the_settings_say(project: Project, tmp_path: Path) -> None:
    """Warn tells, fail fails, off does not look, and allow_residue keeps one package out of both; the results file has it all."""
    plant(project, 1, ROW.pollute)
    settings = project.repository.root / "harness.toml"
    base = settings.read_text()
    line = "tests/p01 left in database 'shop_test': public.item 20 → 21 rows (1 written)"
    assert line in project.repository.run("test").expect(0).stdout
    settings.write_text(in_run_table(base, 'residue = "fail"'))
    done = project.repository.run("test").expect(1)
    assert line in done.stdout
    assert "tests/p01: failed (left behind: public.item 20 → 21 rows (1 written))" in done.stdout
    settings.write_text(in_run_table(base.replace('path = "tests/p01"', 'allow_residue = true, path = "tests/p01"'), 'residue = "fail"'))
    assert "allow_residue" in settings.read_text()
    document = tmp_path / "document.json"
    assert "left" not in project.repository.run("test", "--json", str(document)).expect(0).stdout
    assert _residue(document, 1)["tables"][0]["name"] == "public.item"
    settings.write_text(in_run_table(base, 'residue = "off"'))
    assert "left" not in project.repository.run("test", "--json", str(document)).expect(0).stdout
    assert _residue(document, 1) is None


def _residue(document: Path, place: int) -> Any:
    return json.loads(document.read_text())["packages"][place]["residue"]
