"""Every expected failure says what was found and what to do next: all places that raise one, read from the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from harness.errors import HarnessError

MODULES = sorted((Path(__file__).resolve().parents[2] / "harness").glob("*.py"))
KINDS = {kind.__name__ for kind in HarnessError.__subclasses__()}


class Place(NamedTuple):
    """One making of a failure: the texts that its message and its next step may be, … for what is filled in."""

    where: str
    messages: list[str]
    nexts: list[str]


def texts(node: ast.expr | None, tree: ast.Module) -> list[str]:
    """Return what an expression may read as, `…` for each part that is known only when it runs."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        found = [""]
        for part in node.values:
            some = (
                texts(part, tree)
                if isinstance(part, ast.Constant)
                else texts(part.value, tree)
                if isinstance(part, ast.FormattedValue)
                else ["…"]
            )
            found = [head + tail for head in found for tail in (some if len(found) * len(some) < 64 else ["…"])]
        return found
    if isinstance(node, ast.IfExp):
        return [*texts(node.body, tree), *texts(node.orelse, tree)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [head + tail for head in texts(node.left, tree) for tail in texts(node.right, tree)]
    if isinstance(node, ast.Name):
        values = [
            item.value
            for item in ast.walk(tree)
            if isinstance(item, ast.Assign) and any(isinstance(to, ast.Name) and to.id == node.id for to in item.targets)
        ]
        known = [text for value in values if isinstance(value, (ast.Constant, ast.JoinedStr)) for text in texts(value, tree)]
        return known or ["…"]
    return ["…"]


def makings(path: Path) -> Iterator[Place]:
    """Yield every making of an expected failure in a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
            keywords = {keyword.arg: keyword.value for keyword in node.keywords}
            message = node.args[0] if node.args else keywords.get("message")
            yield Place(f"{path.name}:{node.lineno}", texts(message, tree), texts(keywords.get("next"), tree) if "next" in keywords else [])


ALL = [place for path in MODULES for place in makings(path)]


def test_all_of_them_are_seen() -> None:
    """A change of manner must not empty the tests below."""
    assert len(ALL) > 150
    assert {place.where.partition(":")[0] for place in ALL} >= {"settings.py", "guard.py", "reset.py", "launch.py", "onboarding.py"}


@pytest.mark.parametrize("place", ALL, ids=[place.where for place in ALL])
def test_a_failure_has_finding_and_next_step(place: Place) -> None:
    """The message begins with its object and has no final period; the next step is a whole sentence, or more."""
    assert place.messages
    for message in place.messages:
        assert message.strip(), "no finding"
        assert not message.rstrip().endswith((".", "!", ":")), message
        assert not re.match(r"(Error|Failed|Sorry|Please|Invalid)\b", message), message
    assert place.nexts, "no next step"
    for advice in place.nexts:
        assert re.match(r"[A-Z`…'\"]", advice), advice
        assert advice.endswith((".", "?", "…")), advice
        assert not re.search(r"\b[Pp]lease\b", advice), advice
