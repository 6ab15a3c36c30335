"""The how-to's recipes for CI, typed as they stand: a repository that has just been given the harness, and the files' own commands."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.adoption.adopter import Adopter
from tests.builders import HARNESS_ROOT, ScratchCluster

TEXT = (HARNESS_ROOT / "docs" / "how-to.md").read_text(encoding="utf-8")
COMMAND = re.compile(r"^ +- (?:run: )?((?:test/|\.venv/).*)$", re.MULTILINE)
ITEMS, CHECKOUT = "tests/orders/test_items.py::test_items", "tests/e2e/test_checkout.py::test_it"
GITHUB, GITLAB = ".github/workflows/tests.yml", ".gitlab-ci.yml"


def block(after: str, language: str) -> str:
    """Return the first fenced block of a language behind a line."""
    found = re.search(rf"^```{language}\n(.*?)^```$", TEXT.partition(f"\n{after}\n")[2], re.MULTILINE | re.DOTALL)
    assert found, after
    return found[1]


@pytest.fixture
def shop(outside: Path, adopter: Adopter) -> Adopter:
    """Return a repository to which `harness init` was given."""
    adopter.write("pyproject.toml", '[project]\nname = "shop"\nversion = "1"\n[tool.setuptools]\npackages = []\n')
    adopter.write("migrations/core/0001_items.sql", "CREATE TABLE item(id int);\n")
    adopter.write("tests/orders/test_items.py", "def test_items(test_connection):\n    test_connection.execute('SELECT * FROM item')\n")
    adopter.write("tests/e2e/test_checkout.py", "def test_it(e2e_connection):\n    e2e_connection.execute('INSERT INTO item VALUES (1)')\n")
    (adopter.root / ".venv").symlink_to(outside)
    adopter.run(".venv/bin/harness", "init").expect(0)
    return adopter


@pytest.mark.parametrize("file", [GITHUB, GITLAB])
def test_the_commands_of_a_ci_file_work(shop: Adopter, file: str) -> None:
    """Each command of the file exits 0 in CI's environment, and what the file keeps is there; GitHub's page and groups too."""
    text = block(f"`{file}`", "yaml")
    page = shop.root.parent / "summary.md"
    env = {"CI": "true", **({"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(page)} if file == GITHUB else {})}
    commands = COMMAND.findall(text)
    assert len(commands) == 2
    printed = "".join(shop.run("/bin/sh", "-ec", command, env=env, timeout=300).expect(0).stdout for command in commands)
    (kept,) = re.findall(r"^ +(?:path|junit): (.*\.xml)$", text, re.MULTILINE)
    assert {case.get("name") for case in ET.parse(shop.root / kept).iter("testcase")} == {ITEMS, CHECKOUT}  # noqa: S314  # ours
    assert page.exists() == (file == GITHUB) == ("::group::" in printed)
    shop.run(".venv/bin/harness", "stack-down").expect(0)


def test_a_service_container_is_used_as_an_ordinary_role(shop: Adopter, scratch_cluster: ScratchCluster) -> None:
    """The recipe's commands, then a whole run, on a server that is none of ours."""
    scratch_cluster.clear()
    there = f"127.0.0.1:{scratch_cluster.port}/"
    script = block("## Use a service container as an ordinary role", "sh").replace("127.0.0.1:5432/", there)
    shop.write("recipe.sh", f"{script}.venv/bin/harness test --e2e --json results.json\n")
    env = {"ADMIN_DSN": scratch_cluster.dsn("su"), "PATH": f"{scratch_cluster.binaries}:{shop.environment()['PATH']}"}
    shop.run("/bin/sh", "-e", "recipe.sh", env=env, timeout=300).expect(0, "all fine: 2 tests in 2 packages")
    assert {"shop", "shop_test", "shop_e2e"} <= set(scratch_cluster.databases())
    assert scratch_cluster.value("SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = 'dev'") is False
