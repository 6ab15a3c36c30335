"""Somebody else's projects, from the package index with their tests: init, the generated bootstrap, and two equal runs.

In CI one project, and a part of its suite; with --rounds 10 all of them, whole.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.onboarding import REQUIREMENTS
from tests.adoption.adopter import Adopter, installer_environment, unpack

ALL = 10


class Project(NamedTuple):
    """A source archive by name and version, and what its adoption takes beyond init.

    `requirements` are lines in place of those that no longer bring what the project was written for;
    `part` are the tests for CI; `reds` are tests that fail without us too, by what their ids begin with, each with the reason.
    """

    name: str
    version: str
    settings: tuple[str, ...] = ()
    requirements: Mapping[str, str] = {}  # never changed
    part: tuple[str, ...] = ()
    reds: Mapping[str, str] = {}  # likewise


PROJECTS = (
    Project(
        "sqlalchemy-continuum", "2.0.0", requirements={"psycopg2": "psycopg2-binary"}, part=("tests/test_delete.py", "tests/test_insert.py")
    ),
    Project("django-treebeard", "7.0.3", part=("tests/test_numconv.py", "tests/test_migrations.py")),
    Project(
        "pgqueuer",
        "1.6.0",
        requirements={"mcp": "mcp<2"},  # written for its first version, asked for without a bound
        part=("test/test_queries.py", "test/test_cli_run_and_install.py"),
        reds={
            "test/integration/test_fastapi.py::": "a later FastAPI has no FastAPI.extra",
            "test/test_cli_run_and_install.py::": "a later typer's options are texts",
            "test/test_factory_supervisor_chain.py::": "a later typer's options are texts",
            "test/test_factories.py::": "it empties sys.path and imports",
        },
    ),
)


def unpacked(project: Project, ground: Path) -> Path:
    """Download a project's source archive by its version and unpack it, or skip aloud."""
    argv = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "--no-binary", project.name]
    argv += ["-d", str(ground / "download"), f"{project.name}=={project.version}"]
    done = subprocess.run(argv, env=installer_environment(), capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        pytest.skip(f"{project.name}=={project.version} could not be downloaded with pip")
    (archive,) = (ground / "download").iterdir()
    return unpack(archive, ground / "unpacked").rename(ground / f"adopted {project.name}")


def verdicts(document: Mapping[str, Any]) -> dict[str, str]:
    """Return each test's outcome."""
    return {test["id"]: test["outcome"] for package in document["packages"] for test in package["tests"]}


@pytest.mark.parametrize("project", PROJECTS, ids=[project.name for project in PROJECTS])
def test_a_real_project_adopts_it(project: Project, ground: Path, built: dict[str, Path], rounds: int) -> None:
    """init, at most 15 lines, one bootstrap; then two runs are equal test by test, and what is red is red without us."""
    if project is not PROJECTS[0] and rounds < ALL:
        pytest.skip(f"one project is enough in CI; --rounds {ALL} takes all")
    adopter = Adopter(unpacked(project, ground))
    assert len(project.settings) <= 15
    adopter.harness("init", "--source", str(built["wheel"])).expect(0)
    adopter.write("harness.toml", adopter.read("harness.toml") + "".join(f"{line}\n" for line in project.settings))
    lines = adopter.read(REQUIREMENTS).splitlines()
    kept = [line for line in lines if re.split(r"[<>=\[ ]", line)[0] not in project.requirements]
    adopter.write(REQUIREMENTS, "\n".join([*kept, *project.requirements.values(), ""]))
    adopter.run("test/bootstrap-stack.sh", timeout=900).expect(0)

    selection = () if rounds >= ALL else ("--", *project.part)
    runs = []
    for number in (1, 2):
        done = adopter.run(".venv/bin/harness", "test", "--quiet", "--json", f"../run-{number}.json", *selection, timeout=3000)
        document = json.loads((ground / f"run-{number}.json").read_text())
        assert document["pristine"] is True
        assert done.returncode == (1 if any(outcome in ("failed", "error") for outcome in verdicts(document).values()) else 0), done
        runs.append(verdicts(document))
    assert len(runs[0]) > 5
    assert runs[0] == runs[1]
    red = [name.partition("::")[2] for name, outcome in runs[0].items() if outcome in ("failed", "error")]
    assert [name for name in red if not name.startswith(tuple(project.reds))] == []
    if red:
        script = 'eval "$(.venv/bin/inv env)"; exec .venv/bin/python -m pytest -q -n0 -p no:cacheprovider "$@"'
        alone = adopter.run("bash", "-c", script, "bash", *red, timeout=900)
        assert f"{len(red)} failed" in alone.stdout or alone.stdout.count("\nFAILED ") + alone.stdout.count("\nERROR ") == len(red), alone
    adopter.run(".venv/bin/harness", "stack-down").expect(0)
