"""The tutorial, typed as it stands: its files, its commands in their order, and the settings that it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from harness import settings
from tests.adoption.adopter import Adopter
from tests.builders import HARNESS_ROOT

TEXT = (HARNESS_ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Return the fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_tutorial_works(outside: Path, adopter: Adopter) -> None:
    """A reader who types every line arrives at a green run, with the harness.toml that the page shows."""
    (migration,), (test,), (shown,) = blocks("sql"), blocks("python"), blocks("toml")
    adopter.write("pyproject.toml", '[project]\nname = "shop"\nversion = "1"\n[tool.setuptools]\npackages = []\n')
    adopter.write("migrations/core/0001_items.sql", migration)
    adopter.write("tests/orders/test_items.py", test)
    adopter.write("tests/e2e/test_checkout.py", "def test_checkout(e2e_connection):\n    e2e_connection.execute('SELECT * FROM item')\n")
    (adopter.root / ".venv").symlink_to(outside)  # the first two lines' work
    typed = [line for block in blocks("sh") for line in block.splitlines()]
    assert typed[:2] == ["python3 -m venv .venv", ".venv/bin/pip install pgharness"]
    for line in typed[2:]:
        adopter.run(*shlex.split(line), timeout=300).expect(0)
    (adopter.root.parent / "shown").mkdir()
    (adopter.root.parent / "shown/harness.toml").write_text(shown)
    assert settings.load(adopter.root)._replace(root=Path()) == settings.load(adopter.root.parent / "shown")._replace(root=Path())
    adopter.run(".venv/bin/harness", "stack-down").expect(0)
