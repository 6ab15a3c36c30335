"""Fixtures that all packages share, and the net under them: no test reaches the worktree's own databases by mistake."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests import builders
from tests.builders import SampleRepository, ScratchCluster
from tests.scratch import records_folder, sweep

HERE = Path(__file__).resolve().parent
OWN_DATABASES = HERE / "mission_control"
SERVER_FIXTURES = {"scratch_cluster", "sample_repository", "test_database_url", "e2e_database_url", "test_connection", "e2e_connection"}


class TestWouldTouchARealDatabase(AssertionError):  # named by what happened
    """A test outside tests/mission_control went for a database that was in the environment: build a ScratchCluster."""

    __test__ = False


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --rounds and --run-settings."""
    parser.addoption("--rounds", type=int, default=3, help="rounds of the random and long tests (default 3)")
    help_ = "a line for the [run] table of every sample repository, as fork=false: the same tests in another mode"
    parser.addoption("--run-settings", action="append", default=[], help=help_)


def pytest_configure(config: pytest.Config) -> None:
    """Make property tests repeatable, their state nobody's; the application's packages have none and do without the library."""
    builders.RUN_SETTINGS += [line.replace("=", " = ", 1) for line in config.getoption("--run-settings")]
    paths = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    if all(OWN_DATABASES in path.resolve().parents for path in paths):
        config.pluginmanager.unregister(name="hypothesispytest")  # its summary imports all of it, 0.7 s without bytecode
        return
    import hypothesis

    hypothesis.settings.register_profile("harness", derandomize=True, database=None, deadline=None)
    hypothesis.settings.load_profile("harness")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a server, by the fixtures it asks for."""
    for item in items:
        if SERVER_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.postgres)


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    """Return how often a random or long test repeats itself."""
    return int(request.config.getoption("--rounds"))


@pytest.fixture(scope="session")
def scratch_cluster() -> Iterator[ScratchCluster]:
    """Run this package's own cluster."""
    with ScratchCluster() as cluster:
        yield cluster


@pytest.fixture
def sample_repository(scratch_cluster: ScratchCluster, tmp_path: Path) -> SampleRepository:
    """Return an adopting repository in a folder with a space, its cluster holding the application's database alone."""
    return SampleRepository(tmp_path / "the shop", scratch_cluster)


class Net:
    """Raises when something connects to, or starts a program with, a server that the outer environment named."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.variables = {name for name, value in environment.items() if value.startswith(("postgresql://", "postgres://"))}
        self.ports = {port for name in self.variables if (port := _port_of(environment[name]))}

    def check_connection(self, conninfo: str, parameters: dict[str, Any]) -> None:
        """Refuse a connection to one of the outer ports, whatever the spelling of the host."""
        from psycopg.conninfo import conninfo_to_dict

        found = conninfo_to_dict(conninfo, **parameters)
        port = str(found.get("port") or os.environ.get("PGPORT") or 5432)
        if self.ports & set(port.split(",")):
            raise TestWouldTouchARealDatabase(f"a connection to port {port}, which was in this run's environment")

    def check_program(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Refuse to start a program whose arguments or environment name one of the outer servers."""
        if event != "subprocess.Popen" or not self.ports:
            return
        _, argv, _, environment = arguments
        texts = [os.fsdecode(part) for part in (argv if isinstance(argv, (list, tuple)) else [argv])]
        texts += [os.fsdecode(value) for value in (os.environ if environment is None else environment).values()]
        for text in texts:
            if text.startswith(("postgresql://", "postgres://")) and _port_of(text) in self.ports:
                raise TestWouldTouchARealDatabase("a program started with a DSN that was in this run's environment")


def _port_of(url: str) -> str:
    try:
        return str(urlsplit(url).port or "")
    except ValueError:
        return ""


def _outer_environment() -> dict[str, str]:
    """Return this process's variables and those of the worktree's test/.env, whoever started pytest."""
    found = dict(os.environ)
    path = HERE.parent / "test" / ".env"
    if path.is_file():
        for line in path.read_text(errors="replace").splitlines():
            name, _, value = line.partition("=")
            found[f"test/.env {name}"] = value.strip("'\"")
    return found


@pytest.fixture(scope="session", autouse=True)
def net(request: pytest.FixtureRequest) -> Iterator[Net | None]:
    """Keep every package but tests/mission_control away from the databases that were in the environment."""
    if all(OWN_DATABASES in item.path.parents for item in request.session.items):
        yield None
        return
    import psycopg

    sweep()
    net = Net(_outer_environment())
    with pytest.MonkeyPatch.context() as patch:
        for name in (*net.variables, "MC_DB_DSN", "HARNESS_ROOT", *(name for name in os.environ if name.startswith("PG"))):
            patch.delenv(name, raising=False)
        patch.setenv("HARNESS_STATE_DIR", str(records_folder() / "state"))
        for kind in (psycopg.Connection, psycopg.AsyncConnection):
            patch.setattr(kind, "connect", _guarded(net, kind.connect))
        patch.setattr(psycopg, "connect", psycopg.Connection.connect)
        watching = [net]
        sys.addaudithook(lambda event, arguments: watching[0].check_program(event, arguments) if watching else None)
        try:
            yield net
        finally:
            watching.clear()


def _guarded(net: Net, connect: Any) -> Any:
    def guarded(conninfo: str = "", *arguments: Any, **parameters: Any) -> Any:
        ours = ("autocommit", "prepare_threshold", "context", "row_factory", "cursor_factory")
        net.check_connection(conninfo, {key: value for key, value in parameters.items() if key not in ours})
        return connect(conninfo, *arguments, **parameters)

    return guarded
