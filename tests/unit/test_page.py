"""The HTML page is a function of the results."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness import errors, page, results
from harness.results import DatabaseReset, EndedSession, PackageResult

FAILING = results.TestResult("tests/a::t.py::bad[<i>]", "failed", 0.5, "1 & 2", "</pre><script>x</script>")
GOOD = PackageResult(
    "tests/ok", "test", "passed", 0, None, 1000.0, 3.0, (results.TestResult("tests/ok::t.py::ok", "passed", 0.1),), fine=True
)
BAD = PackageResult("tests/a", "test", "failed", 1, None, 1003.0, 1.0, (FAILING,), {}, {"tables": ["item"]}, ("sleep 9",))
KILLED = PackageResult("tests/k", "test", "crashed", 137, "SIGKILL", 1004.0, 1.0, detail="killed by SIGKILL")
LATER = PackageResult("tests/l", "test", "not-run", None, None, 1005.0, 0.0)
RESET = DatabaseReset("app_x", "test", "template", None, 1, (EndedSession(7, "dev", "pool", "idle"),), 9)


class Elements(HTMLParser):
    """Collects elements and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Note text."""
        self.text += data


def rendered(*packages: PackageResult) -> Elements:
    """Return the page's elements."""
    return Elements(page.render(packages, pristine=True, doubts=["a doubt"], databases=[RESET]))


def test_everything_is_on_the_page() -> None:
    """Verdict, failures with output and command, what was left behind, who was ended."""
    text = rendered(GOOD, BAD, KILLED, LATER).text
    for said in (FAILING.id, FAILING.reason, FAILING.output, "inv test --package tests/k", "killed by SIGKILL", "sleep 9", '"item"'):
        assert said in text
    assert "ended session 7 of dev on 'app_x' (pool, idle)" in text
    assert "not fine: tests/a, tests/k, tests/l" in text
    assert "not isolated: a doubt" in text


def test_output_is_never_markup() -> None:
    """No script, nothing that asks for anything, and every link leads to something on the page."""
    elements = rendered(GOOD, BAD, KILLED, LATER).elements
    assert {"script", "img", "iframe", "object"} & {tag for tag, _ in elements} == set()
    links = [str(attributes["href"]) for _, attributes in elements if "href" in attributes]
    ids = {f"#{attributes['id']}" for _, attributes in elements if "id" in attributes}
    assert set(links) - {"data:,"} == ids == {"#package-1", "#package-2"}
    assert [attributes for _, attributes in elements if "src" in attributes] == []


def test_the_time_line_is_to_scale() -> None:
    """A package begins where the one before it ended."""
    styles = [str(attributes["style"]) for tag, attributes in rendered(GOOD, BAD, KILLED).elements if attributes.get("class") == "bar"]
    assert [re.findall(r"(?:left|width):([\d.]+)%", style) for style in styles] == [
        ["0.00", "60.00"],
        ["60.00", "20.00"],
        ["80.00", "20.00"],
    ]


def test_a_page_of_nothing_is_a_page() -> None:
    """An interrupted run may have no package."""
    assert "no test ran" in rendered().text


def test_a_page_holds_no_password(tmp_path: Path) -> None:
    """Nor in a link or a title."""
    errors.conceal("hunter3hunter3")
    page.write(tmp_path / "page.html", [BAD._replace(detail="hunter3hunter3")], pristine=True)
    assert "hunter3" not in (tmp_path / "page.html").read_text()


def test_a_page_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """The path is named."""
    with pytest.raises(errors.UsageError, match="cannot be written"):
        page.write(tmp_path / "no" / "page.html", [GOOD], pristine=True)
