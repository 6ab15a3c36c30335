"""The README's picture and figures are those that the code and the benchmark make."""

from __future__ import annotations

import importlib.util
import json
import re
import statistics
from html import unescape
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks" / "results" / "reset.json"


def script() -> ModuleType:
    """Return docs/picture.py as a module."""
    spec = importlib.util.spec_from_file_location("picture", ROOT / "docs" / "picture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words(svg: str) -> str:
    """Return what a picture says; how it is drawn depends on the library's version."""
    return "".join(unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg)).replace("\xa0", " ")


def test_the_picture_is_the_scripts() -> None:
    """What the harness prints today is what the picture shows: else run `python docs/picture.py`."""
    picture = script()
    assert words(picture.PICTURE.read_text(encoding="utf-8")) == words(picture.drawn())
    assert "on pristine databases" in words(picture.drawn())


def test_the_picture_loads_nothing_from_elsewhere() -> None:
    """No font and no style sheet of somebody's server."""
    assert re.findall(r"(?:url\(|href=)[^)>]*//[^)>]*", script().PICTURE.read_text(encoding="utf-8")) == []


def test_the_readmes_figures_are_the_benchmarks() -> None:
    """Each time in the table is the median of the results that lie in the repository."""
    medians = {way: statistics.median(found) for way, found in json.loads(RESULTS.read_text())["milliseconds"]["medium"].items()}
    rows = re.findall(r"^\| ([^|]+) \| ([\d.]+) s \|", README, re.MULTILINE)
    assert len(rows) >= 5
    assert dict(rows) == {way: f"{medians[way] / 1000:.1f}" for way, _ in rows}
    (one_by_one,) = re.findall(r"one by one in ([\d.]+) s", README)
    assert one_by_one == f"{medians['psql, one per file'] / 1000:.1f}"
