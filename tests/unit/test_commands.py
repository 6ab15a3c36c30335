"""What a migration command is given."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from harness import commands, settings
from harness.errors import UsageError
from harness.settings import Settings, Stream
from harness.targets import HIDDEN, Dsn, parse_dsn

TARGET = "postgresql://dev:p%40ss@127.0.0.1:5433/shop_test"
APPLICATION = "postgresql://dev:p%40ss@127.0.0.1:5433/shop"
STREAM = Stream("tool", command=("tool",))


def dsn(text: str = TARGET) -> Dsn:
    """Parse a connection string."""
    return parse_dsn("X", text)


def environment(
    stream: Stream = STREAM,
    *,
    given: dict[str, str] | None = None,
    extra: tuple[tuple[str, str], ...] = (),
    application: str | None = APPLICATION,
) -> dict[str, str]:
    """Return a command's environment."""
    of = Settings(Path("/nowhere"), settings.DEFAULT_DATABASES, (stream,), (), extra, settings.Run(), settings.Stack())
    around = commands.Surroundings(of, dsn(application) if application else None, given or {})
    return commands.environment(around, stream, dsn())


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ("postgresql", TARGET),
        ("postgres", TARGET.replace("postgresql", "postgres")),
        ("postgresql+psycopg", TARGET.replace("postgresql", "postgresql+psycopg")),
    ],
)
def test_the_target_comes_in_the_form_the_tool_reads(scheme: str, expected: str) -> None:
    """The DSN stands under the stream's variable, in its scheme."""
    assert expected == environment(STREAM._replace(variable="URL", scheme=scheme))["URL"]


def test_nothing_leads_elsewhere() -> None:
    """Libpq's and git's variables and the other databases' are gone, and the application's is hidden under every name."""
    given = {
        "PGHOST": "x",
        "GIT_DIR": "x",
        "MC_DB_DSN": APPLICATION,
        "TEST_DATABASE_URL": TARGET,
        "E2E_DATABASE_URL": TARGET,
        "MAINTENANCE_DATABASE_URL": TARGET,
        "OTHER": APPLICATION,
        "OTHER_FORM": "postgresql+asyncpg://127.0.0.1:5433/shop",
        "BROKEN": "postgresql://nowhere/%zz",
        "DATABASE_URL": APPLICATION,
        "HOME": "/home/dev",
    }
    assert {
        "MC_DB_DSN": HIDDEN,
        "OTHER": HIDDEN,
        "OTHER_FORM": HIDDEN,
        "BROKEN": "postgresql://nowhere/%zz",
        "DATABASE_URL": TARGET,
        "HOME": "/home/dev",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.defpath]),
    } == environment(given=given)


def test_the_tools_of_our_own_interpreter_come_first() -> None:
    """Another worktree's activated environment does not win."""
    assert environment(given={"PATH": "/elsewhere/bin"})["PATH"] == f"{Path(sys.executable).parent}{os.pathsep}/elsewhere/bin"


def test_the_settings_environment_comes_last() -> None:
    """[environment] is filled in from the database at work, and wins."""
    extra = (
        ("PGHOST", "{host}"),
        ("A", "{user}/{password}/{port}/{name}"),
        ("B", "{url:pgx5}?x"),
        ("C", '{"url": {}}'),
        ("DATABASE_URL", "{url}?s=1"),
    )
    found = environment(extra=extra)
    assert {"PGHOST": "127.0.0.1", "A": "dev/p@ss/5433/shop_test", "B": TARGET.replace("postgresql", "pgx5") + "?x"} == {
        name: found[name] for name in ("PGHOST", "A", "B")
    }
    assert (found["C"], found["DATABASE_URL"]) == ('{"url": {}}', f"{TARGET}?s=1")


def test_a_literal_application_url_in_the_settings_is_refused() -> None:
    """harness.toml may not send a command to the application's database."""
    with pytest.raises(UsageError, match=r"DJANGO_URL leads to the application's database 127.0.0.1:5433/shop"):
        environment(extra=(("DJANGO_URL", "postgres://other@127.0.0.1:5433/shop"),))


def test_the_stream_may_use_the_applications_own_variable() -> None:
    """A tool that reads the application's variable gets the target there."""
    assert environment(STREAM._replace(variable="MC_DB_DSN"), given={"MC_DB_DSN": APPLICATION})["MC_DB_DSN"] == TARGET


def test_without_an_application_nothing_is_searched() -> None:
    """`harness.migrate` may be migrating the application's own database."""
    found = environment(given={"OTHER": APPLICATION}, application=None)
    assert (found["OTHER"], found["MC_DB_DSN"]) == (APPLICATION, HIDDEN)


def test_inputs_are_read_in_order_of_their_paths(tmp_path: Path) -> None:
    """Each file once, folders and bytecode left out."""
    for name in ("b/x.py", "a.ini", "b/__pycache__/x.pyc", "b/c/y.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    found = commands.read_inputs(tmp_path, STREAM._replace(inputs=("b/**", "*.ini", "b/*.py")))
    assert [one.path for one in found or ()] == ["a.ini", "b/c/y.py", "b/x.py"]
