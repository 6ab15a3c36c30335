"""One run on several machines: each takes its part, and the parts are joined to one result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.builders import SampleRepository
from tests.verdict.projects import Project


@pytest.fixture
def project(sample_repository: SampleRepository) -> Project:
    """Return a project of seven clean packages."""
    return Project(sample_repository, 1, 7, 0)


def shards(project: Project, count: int, *flags: str) -> list[Path]:
    """Run every shard, as each machine would, and return the results files."""
    files = []
    for number in range(1, count + 1):
        path, suites = project.repository.root / f"part-{number}.json", project.repository.root / f"part-{number}.xml"
        arguments = ["test", "--shard", f"{number}/{count}", "--json", str(path), "--junit", str(suites), *flags]
        project.repository.run(*arguments).expect(0)
        files.append(path)
    return files


def packages(path: Path) -> list[str]:
    """Return the names of the packages in a results file."""
    return [package["package"] for package in json.loads(path.read_text())["packages"]]


def test_the_shards_together_are_the_run(project: Project) -> None:
    """Complete, disjoint, each in the run's order; joined they are one test document, one JUnit file and one summary."""
    files = shards(project, 3)
    parts = [packages(path) for path in files]
    assert sorted(name for part in parts for name in part) == project.names
    assert all(part == sorted(part) for part in parts)
    document: Any = json.loads(files[1].read_text())
    assert document["shard"] == {"index": 2, "count": 3}
    suites = [str(path.with_suffix(".xml")) for path in files]
    merged, joined = project.repository.root / "all.json", project.repository.root / "all.xml"
    paths = [str(path) for path in reversed(files)]
    done = project.repository.run("report-merge", "--json", str(merged), *paths, *suites, "--junit", str(joined)).expect(0)
    assert "in 7 packages, on pristine databases" in done.stdout
    document = json.loads(merged.read_text())
    assert (document["command"], document["shard"], document["pristine"]) == ("report-merge", None, True)
    assert document["totals"]["packages_passed"] == 7
    assert sorted(packages(merged)) == project.names
    assert all(name in joined.read_text() for name in project.names)
    again = project.repository.run("test", "--shard", "1/2", "--durations", str(merged)).expect(0)
    assert "[1/" in again.stdout


def test_durations_balance_the_shards(project: Project) -> None:
    """The long package has a machine of its own, whatever the machine remembers of its own runs."""
    (whole,) = shards(project, 1)
    document = json.loads(whole.read_text())
    for package in document["packages"]:
        package["seconds"] = 60.0 if package["package"] == "tests/p04" else 1.0
    whole.write_text(json.dumps(document))
    kept = whole.rename(project.repository.root / "durations.json")
    parts = [packages(path) for path in shards(project, 2, "--durations", str(kept))]
    assert parts == [["tests/p04"], [name for name in project.names if name != "tests/p04"]]


def test_a_machine_without_packages_is_fine(project: Project) -> None:
    """More machines than packages: what is left over does nothing, and says so."""
    path = project.repository.root / "part.json"
    done = project.repository.run("test", "--shard", "9/9", "--json", str(path)).expect(0)
    assert "shard 9/9 has no packages" in done.stdout
    assert packages(path) == []


def test_what_is_missing_or_double_is_told(project: Project) -> None:
    """A shard without results is exit 1, one that is there twice, or of another sharing, exit 2."""
    files = [str(path) for path in shards(project, 3)]
    done = project.repository.run("report-merge", files[0], files[2]).expect(1)
    assert "the results of shard 2/3 are missing" in done.stdout
    project.repository.run("report-merge", files[0], files[0]).expect(2, "the results of shard 1/3 are there twice")
    other = project.repository.root / "other.json"
    project.repository.run("test", "--shard", "1/2", "--json", str(other)).expect(0)
    project.repository.run("report-merge", *files, str(other)).expect(2, "runs on 2 and 3 machines")
    project.repository.run("report-merge", *files, "harness.toml").expect(2, "'harness.toml' is no results file")


def test_a_failed_machine_fails_the_whole(project: Project) -> None:
    """A package that is not fine, and a machine whose reset failed, are exit 1 for all."""
    files = [str(path) for path in shards(project, 2)]
    project.repository.write("tests/p00/run.sql", "SELECT 1 / 0;\n")
    project.repository.run("test", "--shard", "1/2", "--json", files[0]).expect(1)
    assert "not fine: tests/p00" in project.repository.run("report-merge", *files).expect(1).stdout
    project.repository.migration("0002_broken.sql", "SELECT 1 / 0;\n")
    project.repository.run("test", "--shard", "1/2", "--json", files[0]).expect(4)
    done = project.repository.run("report-merge", *files).expect(1)
    assert f"{files[0]}: " in done.stdout
    assert "0002_broken.sql" in done.stdout
