"""The HTML page, as a browser shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.run import browser
from tests.run.project import Project

SOURCE = """
import pytest, sys
@pytest.mark.parametrize("x", ["<b>bold</b>", "a&amp;b", '"quoted"', "it's"])
def test_bad(x):
    print("<script>document.title = 'broken out'</script>")
    assert x == "</pre><img src=http://nobody.invalid/x.png>"
def test_ok(): pass
@pytest.mark.skip(reason="not <i>today</i>")
def test_skipped(): pass
"""


def test_the_page_shows_every_failure_and_asks_for_nothing(tmp_path: Path) -> None:
    """No console error, no request, every failing id and killed package visible, and no test's output becomes markup."""
    program = browser.find()
    if program is None:
        pytest.skip("Chromium is not installed; run apt-get install chromium")
    project = Project(tmp_path / "p", "tests/<odd> & name", "tests/killed", "tests/ok", "tests/gone")
    project.package("tests/<odd> & name", SOURCE)
    start = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)', 'left-behind'], start_new_session=True, stdout=subprocess.DEVNULL)"
    project.package("tests/killed", f"import os, subprocess, sys\ndef test_it():\n    {start}\n    os.kill(os.getpid(), 9)\n")
    project.package("tests/ok", "def test_ok(): pass\n")
    found = project.packages("--html", "page.html", code=1)
    failing = [test["id"] for package in found.values() for test in package["tests"] if test["outcome"] in ("failed", "error")]
    assert len(failing) == 5
    with browser.Browser(program) as chromium:
        chromium.open(project.root / "page.html")
        text, events = chromium.text(), chromium.events
        chromium.screenshot(tmp_path / "page.png")
    assert [name for name in [*failing, *found] if name not in text] == []
    for said in ("killed by SIGKILL", "left-behind", "inv test --package tests/gone", "<script>document.title = 'broken out'</script>"):
        assert said in text
    requests = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert [url for url in requests if not url.startswith(("file://", "data:"))] == []
    assert [
        event["params"] for event in events if event["method"] in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
    ] == []
    assert (tmp_path / "page.png").stat().st_size > 10_000
