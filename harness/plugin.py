"""The pytest side: fixtures, skips that name their variable, no caches, and every test's outcome as data.

It reads the environment only, and imports no driver before a test asks for a connection.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest

from harness import bytecode
from harness.errors import UsageError, conceal, redact
from harness.outcomes import APPLICATION, BYTECODE, OUTCOMES, TURN, VARIABLES
from harness.settings import BOOTSTRAP, DEFAULT_DATABASES
from harness.targets import HIDDEN

if TYPE_CHECKING:
    import psycopg

OUTPUT_LIMIT = 64_000

# Taken out of the environment: a pytest that a test starts is not the runner's child.
_private = {name: os.environ.pop(name) for name in (OUTCOMES, VARIABLES, APPLICATION, BYTECODE, TURN) if name in os.environ}
_variables: dict[str, str] = {database.role: database.variable for database in DEFAULT_DATABASES}
_variables |= json.loads(_private.get(VARIABLES, "{}"))
_given = {role: os.environ.get(variable, "") for role, variable in _variables.items()}
for _password in re.findall(r"//[^/@\s:]*:([^/@\s]+)@|\bpassword=(\S+)", " ".join(_given.values())):
    for _form in _password:
        conceal(_form)
        conceal(unquote(_form))


@pytest.fixture(scope="session")
def test_database_url() -> str:
    """The test database's DSN; without it the test skips and names the variable."""
    return require_database(_variables["test"])


@pytest.fixture(scope="session")
def e2e_database_url() -> str:
    """The e2e database's DSN; without it the test skips and names the variable."""
    return require_database(_variables["e2e"])


@pytest.fixture
def test_connection(test_database_url: str) -> Iterator[psycopg.Connection]:
    """A connection to the test database that is rolled back after the test."""
    import psycopg

    connection = psycopg.connect(test_database_url)
    try:
        yield connection
    finally:
        if not connection.closed:
            connection.rollback()
        connection.close()


@pytest.fixture
def e2e_connection(e2e_database_url: str) -> Iterator[psycopg.Connection]:
    """A connection to the e2e database on which every statement commits."""
    import psycopg

    connection = psycopg.connect(e2e_database_url, autocommit=True)
    try:
        yield connection
    finally:
        connection.close()


def require_database(variable: str) -> str:
    """Return the DSN in `variable`; skip the test, or the module, when it is unset or empty.

    The whole run stops when it names the application's database.
    """
    text = os.environ.get(variable, "")
    if not text.strip():
        own = [name for role, name in _variables.items() if role in ("test", "e2e") and _given[role]]
        only = f" (this package's own variable is {own[0]})" if OUTCOMES in _private and own and variable not in own else ""
        pytest.skip(f"{variable} is not set; run {BOOTSTRAP}{only}", allow_module_level=True)
    _stop_at_the_application(variable, text)
    return text


def _stop_at_the_application(variable: str, text: str) -> None:
    """End the run when `text` names the application's database; one that the runner gave was proven by it already."""
    ours = _variables["application"]
    if variable != ours and OUTCOMES in _private and text in _given.values():
        return
    known = [_place(ours, _given["application"])] if _given["application"] not in ("", HIDDEN) else []
    if APPLICATION in _private:
        known.append(tuple(_private[APPLICATION].split("\n")))
    place = _place(variable, text) if known else ()
    if variable == ours or place in known:
        pytest.exit(
            f"{variable} names the application's database: no test may use it. Run {BOOTSTRAP}, which writes another.", returncode=3
        )
    if known and len(place) == 1:
        pytest.exit(f"{place[0]} Until then nobody can tell whether it is the application's database.", returncode=3)


def _place(variable: str, text: str) -> tuple[str, ...]:
    """Return host, port and name that a DSN leads to, without asking a server; for one that cannot be read, what is wrong with it."""
    from harness.targets import parse_dsn

    scheme, separator, rest = text.partition("://")
    try:
        dsn = parse_dsn(variable, f"{scheme.partition('+')[0]}{separator}{rest}")
    except UsageError as error:
        return (str(error),)
    host = dsn.host or dsn.hostaddr
    return ("localhost" if host in ("127.0.0.1", "::1") else host, str(dsn.port), dsn.name)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Make cache_dir a known setting also where the project switched the cache plugin off: the runner always gives it."""
    if OUTCOMES in _private and not pluginmanager.hasplugin("cacheprovider"):
        parser.addini("cache_dir", "unused: the cache plugin is off")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests() -> Generator[None, Any, Any]:
    """Wait for the package before to be over; have everything of the project that is imported from here on compiled from its source."""
    if turn := _private.pop(TURN, ""):
        if not os.read(int(turn), 1):
            os._exit(1)  # nobody is left who could give it
        os.close(int(turn))
    if BYTECODE in _private:
        bytecode.read_none_of_the_project(_private[BYTECODE], os.environ, _private)
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, Any, Any]:
    """Record outcomes under the runner, and let no option of the project's settings skip, reorder or parallelise tests."""
    if (path := _private.get(OUTCOMES)) and not _recorders:
        recorder = Recorder(path)
        _recorders.append(recorder)
        for option in neutralise(config.option):
            recorder.write(neutralised=option)
        config.pluginmanager.register(recorder, "harness.recorder")
    return (yield)


def pytest_sessionstart() -> None:
    """Stop a run by hand before its first test when a test variable names the application's database."""
    if OUTCOMES in _private or _given["application"] in ("", HIDDEN):
        return
    for role in ("test", "e2e"):
        if _given[role].strip():
            _stop_at_the_application(_variables[role], _given[role])


_NEUTRAL: tuple[tuple[str, str, object], ...] = (
    ("--lf", "lf", False),
    ("--ff", "failedfirst", False),
    ("--nf", "newfirst", False),
    ("--sw", "stepwise", False),
    ("--sw-skip", "stepwise_skip", False),
    ("--cache-show", "cacheshow", None),
    ("--testmon", "testmon", False),
    ("--testmon-noselect", "testmon_noselect", False),
    ("--testmon-nocollect", "testmon_nocollect", False),
    ("--testmon-forceselect", "testmon_forceselect", False),
    ("--picked", "picked", None),
    ("-n", "numprocesses", None),
    ("--maxprocesses", "maxprocesses", None),
    ("--dist", "dist", "no"),
    ("--tx", "tx", []),
    ("--looponfail", "looponfail", False),
    ("--workers", "workers", None),
    ("--tests-per-worker", "tests_per_worker", None),
    ("--parallel-threads", "parallel_threads", 1),
)
"""Options that depend on an earlier run or use several processes, with what switches them off."""


def neutralise(option: Any) -> list[str]:
    """Switch off what depends on an earlier run or uses several processes; return the options that were on."""
    found = []
    for flag, name, off in _NEUTRAL:
        value = getattr(option, name, off)
        if value and value not in (off, "0"):
            found.append(flag)
        if hasattr(option, name):
            setattr(option, name, off)
    return found


_recorders: list[Recorder] = []
"""The one recorder of this process: a test may run pytest within it, which is none of the runner's business."""


class Recorder:
    """Writes each test's outcome as a line of JSON when the test is over: a killed process leaves what it had."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._reports: list[pytest.TestReport] = []

    def write(self, **event: object) -> None:
        """Append one event in a single write."""
        os.write(self._descriptor, json.dumps(event).encode() + b"\n")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Tell how many tests there are, relative to what their ids are, and what a conftest did to our variables."""
        now = {name: os.environ.get(name, "") for name in _variables.values()}
        changed = [name for role, name in _variables.items() if now[name] != _given[role] and now[name] not in _given.values()]
        self.write(collected=len(session.items), rootdir=str(session.config.rootpath), overridden=changed)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        """Tell how many tests a selection left out."""
        self.write(deselected=len(items))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a file that could not be collected, or that skipped itself."""
        if not report.passed:
            outcome = "error" if report.failed else "skipped"
            self.write(id=report.nodeid, outcome=outcome, seconds=0.0, reason=_reason(report), output=_output([report]))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Name the test at work, for the case that it never ends."""
        self._reports = []
        self.write(started=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a phase's report until its test is over."""
        if report.outcome in ("passed", "failed", "skipped"):
            self._reports.append(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Record the test."""
        reports = _last_attempt(self._reports)
        outcome, telling = _verdict(reports)
        seconds = sum(report.duration for report in reports if not hasattr(report, "context"))
        reason = "" if outcome == "passed" else _reason(telling)
        output = _output(reports) if outcome in ("failed", "error") else ""
        self.write(id=nodeid, outcome=outcome, seconds=round(seconds, 6), reason=reason, output=output)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Say that the session was not cut off."""
        self.write(finished=int(exitstatus))


def _last_attempt(reports: list[pytest.TestReport]) -> list[pytest.TestReport]:
    """Return the reports from the last set-up on: a plugin may have run a flickering test again."""
    starts = [number for number, report in enumerate(reports) if report.when == "setup"]
    return reports[starts[-1] :] if starts else reports


def _verdict(reports: list[pytest.TestReport]) -> tuple[str, pytest.TestReport | None]:
    """Return a test's outcome and the report that explains it."""
    for report in reports:
        if report.failed:
            return ("failed" if report.when == "call" else "error"), report
    for report in reports:
        if report.skipped and not hasattr(report, "context"):
            return ("xfailed" if hasattr(report, "wasxfail") else "skipped"), report
        if report.when == "call" and hasattr(report, "wasxfail"):
            return "xpassed", report
    if any(report.when == "call" for report in reports):
        return "passed", None
    return "error", None


def _reason(report: pytest.TestReport | pytest.CollectReport | None) -> str:
    if report is None:
        return "it has no call phase"
    if hasattr(report, "wasxfail"):
        return str(report.wasxfail)
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message) if crash else report.longreprtext
    told = [line for line in text.splitlines() if line.startswith("E ")]  # of a module's traceback, where it is text
    text = text if crash or not told else told[-1][1:]
    return redact(" ".join(text.split()))[:1000]


def _output(reports: list[Any]) -> str:
    parts = [report.longreprtext for report in reports if report.failed]
    sections = {title: text for report in reports for title, text in report.sections}
    text = redact("\n".join([*parts, *(f"--- {title} ---\n{text}" for title, text in sections.items())]))
    return text if len(text) <= OUTPUT_LIMIT else f"{text[: OUTPUT_LIMIT // 2]}\n[… cut …]\n{text[-OUTPUT_LIMIT // 2 :]}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep known passwords out of every report."""
    report = yield
    report.sections = [(title, redact(text)) for title, text in report.sections]
    if report.failed and redact(report.longreprtext) != report.longreprtext:
        report.longrepr = redact(report.longreprtext)
    return report
