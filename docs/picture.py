"""Draws docs/run.svg, the README's picture of a run, from the lines that the harness prints: `python docs/picture.py`."""

from __future__ import annotations

import io
import re
from pathlib import Path

from harness import report
from harness.results import DatabaseReset, EndedSession, PackageResult, TestResult, exit_code
from harness.settings import Package

PICTURE = Path(__file__).with_name("run.svg")
LEFT = "tests/imports left in database 'shop_test': public.item 0 → 1 rows (1 written)"
RESETS = (
    DatabaseReset("shop_test", "test", "template", "a1", 62, (EndedSession(4711, "shop_test", "psql", "idle"),), 71),
    DatabaseReset("shop_e2e", "e2e", "template", "a1", 62, (), 74),
)


def result(name: str, role: str, seconds: float, passed: int, failed: str = "") -> PackageResult:
    """Return a package's result with so many tests, the last of them failed for a reason where one is given."""
    tests = [TestResult(f"{name}::{name}/test_it.py::test_{number}", "passed", 0.01, "") for number in range(passed)]
    if failed:
        tests.append(TestResult(f"{name}::{name}/test_stock.py::test_the_shop_is_empty", "failed", 0.01, failed))
    status = "failed" if failed else "passed"
    return PackageResult(
        name, role, status, exit=int(bool(failed)), signal=None, started=0, seconds=seconds, tests=tuple(tests), fine=not failed
    )


RESULTS = (
    result("tests/imports", "test", 0.41, 12),
    result("tests/orders", "test", 0.38, 41, "AssertionError: assert [1] == []"),
    result("tests/checkout", "e2e", 1.27, 9),
)


def lines() -> list[str]:
    """Return what `inv test --e2e` prints of such a run, a package's own output left out."""
    stream = io.StringIO()
    teller = report.Reporter(shell={}, stream=stream)
    for line in report.reset_lines(RESETS):
        teller.say(line)
    for number, found in enumerate(RESULTS, 1):
        package = Package(found.package, found.role, found.package)
        teller._now = (package, number, len(RESULTS), 0.0)  # begun without the clock, so that every picture is the same  # noqa: SLF001
        teller.say(f"[{number}/{len(RESULTS)}] {package.name}")
        if package.name == "tests/imports":
            teller.say(LEFT)
        teller.end(found)
    for line in report.summary_lines(RESULTS, pristine=True):
        teller.say(line)
    return stream.getvalue().splitlines()


def drawn() -> str:
    """Return the picture as SVG; the same lines make the same picture."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=112, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text("$ inv test --e2e", style="bold"))
    for line in lines():
        style = "red" if "failed" in line or line.startswith("not fine") else "green" if "pristine:" in line or "passed" in line else ""
        console.print(Text(line, style=style))
    # A reader's own monospaced font will do: the picture loads nothing from elsewhere.
    return re.sub(r"\s*@font-face \{.*?\n    \}", "", console.export_svg(title="a run", unique_id="run"), flags=re.DOTALL)


if __name__ == "__main__":
    assert exit_code(RESULTS) == 1
    PICTURE.write_text(drawn() + "\n", encoding="utf-8")
