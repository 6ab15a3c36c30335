"""The plan of all streams and its fingerprint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import harness
from harness import settings, streams
from harness.errors import UsageError
from harness.settings import Settings, Stream


def planned(root: Path, *of: Stream, environment: tuple[tuple[str, str], ...] = ()) -> streams.Plan:
    """Return the plan of some streams."""
    return streams.plan(Settings(root, settings.DEFAULT_DATABASES, of, (), environment, settings.Run(), settings.Stack()))


def fingerprint(root: Path, *of: Stream, context: tuple[str, ...] = (), environment: tuple[tuple[str, str], ...] = ()) -> str | None:
    """Return the fingerprint of some streams."""
    return streams.fingerprint(planned(root, *of, environment=environment), context)


def write(root: Path, files: dict[str, str]) -> Path:
    """Write files under a folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


CORE, MORE = Stream("core", "a"), Stream("more", "b")
TOOL = Stream("tool", command=("tool", "up"), inputs=("versions/**/*.py",))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a project with two folders of SQL and a tool's own."""
    files = {"a/1_x.sql": "SELECT 1;", "a/2_y.sql": "SELECT 2;", "b/1_x.sql": "SELECT 1;", "versions/deep/v.py": "v = 1"}
    return write(tmp_path, files)


def test_the_same_number_may_stand_in_two_streams(root: Path) -> None:
    """Numbers count within a stream; streams come in the order of harness.toml."""
    found = planned(root, MORE, CORE)
    assert [(file.stream, file.name, file.position) for one in found.streams for file in one.files] == [
        ("more", "1_x.sql", 1),
        ("core", "1_x.sql", 1),
        ("core", "2_y.sql", 2),
    ]


def test_two_streams_cannot_share_a_folder(root: Path) -> None:
    """Its files would be applied twice."""
    with pytest.raises(UsageError, match="'core' and 'again'"):
        planned(root, CORE, Stream("again", "b/../a"))


def test_notices_of_all_streams_are_kept(root: Path) -> None:
    """Each stream's skipped files are in the plan's notices."""
    write(root, {"a/3_z.sql.bak": "", "b/1_x.down.sql": ""})
    assert [notice.split(" is ")[0].split(f"{root}/")[1] for notice in planned(root, CORE, MORE).notices] == [
        "a/3_z.sql.bak",
        "b/1_x.down.sql",
    ]


def test_the_fingerprint_is_of_content_not_of_place(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The same files in another folder have the same fingerprint, and so it is stable."""
    other = write(tmp_path_factory.mktemp("other"), {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*.*")})
    assert fingerprint(root, CORE, MORE, TOOL) == fingerprint(other, CORE, MORE, TOOL)
    assert len(fingerprint(root, CORE, MORE, TOOL) or "") == 64


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"a/2_y.sql": "SELECT 3;"}, id="content"),
        pytest.param({"a/3_z.sql": ""}, id="an empty file more"),
        pytest.param({"versions/deep/v.py": "v = 2"}, id="a command's input"),
        pytest.param({"versions/w.py": ""}, id="an input more"),
    ],
)
def test_a_changed_file_changes_the_fingerprint(root: Path, files: dict[str, str]) -> None:
    """Whatever is applied is in the fingerprint."""
    before = fingerprint(root, CORE, TOOL)
    assert fingerprint(write(root, files), CORE, TOOL) != before


def test_a_renamed_file_changes_the_fingerprint(root: Path) -> None:
    """Names and their order count, not only the bytes."""
    before = fingerprint(root, CORE)
    (root / "a/2_y.sql").rename(root / "a/2_z.sql")
    assert fingerprint(root, CORE) != before


@pytest.mark.parametrize(
    "other",
    [
        pytest.param([MORE, CORE, TOOL], id="order of streams"),
        pytest.param([CORE, TOOL], id="a stream less"),
        pytest.param([CORE._replace(name="kern"), MORE, TOOL], id="name"),
        pytest.param([CORE._replace(as_maintenance=True), MORE, TOOL], id="role"),
        pytest.param([CORE, MORE, TOOL._replace(command=("tool", "up", "--fast"))], id="command"),
        pytest.param([CORE, MORE, TOOL._replace(variable="URL")], id="variable"),
        pytest.param([CORE, MORE, TOOL._replace(scheme="postgres")], id="scheme"),
    ],
)
def test_changed_settings_change_the_fingerprint(root: Path, other: list[Stream]) -> None:
    """How something is applied is in the fingerprint too."""
    assert fingerprint(root, CORE, MORE, TOOL) != fingerprint(root, *other)


def test_what_does_not_change_the_outcome_does_not_change_the_fingerprint(root: Path) -> None:
    """A time limit, bytecode, and [environment] where no command runs make no difference."""
    assert fingerprint(root, TOOL) == fingerprint(root, TOOL._replace(timeout=5))
    before = fingerprint(root, CORE, TOOL)
    assert fingerprint(write(root, {"versions/__pycache__/v.py": "x"}), CORE, TOOL) == before
    assert fingerprint(root, CORE) == fingerprint(root, CORE, environment=(("A", "1"),))
    assert fingerprint(root, TOOL) != fingerprint(root, TOOL, environment=(("A", "1"),))


@given(st.lists(st.text(max_size=5), max_size=4), st.lists(st.text(max_size=5), max_size=4))
def test_contexts_never_run_into_each_other(tmp_path_factory: pytest.TempPathFactory, one: list[str], other: list[str]) -> None:
    """Only equal contexts share a fingerprint."""
    empty = planned(tmp_path_factory.getbasetemp())
    assert (one == other) == (streams.fingerprint(empty, one) == streams.fingerprint(empty, other))


@pytest.mark.parametrize("inputs", [None, ()])
def test_a_command_without_inputs_is_never_cached(root: Path, inputs: tuple[str, ...] | None) -> None:
    """Nobody knows what it reads, so there is no fingerprint."""
    assert fingerprint(root, CORE, TOOL._replace(inputs=inputs)) is None


def test_inputs_that_match_nothing_are_refused(root: Path) -> None:
    """A pattern beside the mark would cache for ever."""
    with pytest.raises(UsageError, match=r"input 'alembic/\*' matches no file"):
        planned(root, TOOL._replace(inputs=("versions/**", "alembic/*")))


def test_extensions_have_the_place_that_asks_first(root: Path) -> None:
    """Each extension comes with file and line."""
    write(root, {"a/3_e.sql": "\n CREATE EXTENSION citext;\nCREATE EXTENSION hstore;", "b/2_e.sql": "CREATE EXTENSION citext"})
    path = root / "a/3_e.sql"
    assert {"citext": (path, 2), "hstore": (path, 3)} == streams.extensions(planned(root, CORE, MORE))


def test_a_plan_needs_no_server_and_no_driver(root: Path) -> None:
    """Planning and fingerprinting import neither psycopg nor subprocess, and `import harness` imports nothing of the sort."""
    script = f"""
import sys
import harness
assert not {{"psycopg", "harness.streams", "typing", "re"}} & set(sys.modules), sorted(sys.modules)
from pathlib import Path
from harness import settings, streams
of = settings.Settings(Path({str(root)!r}), (), (settings.Stream("core", "a"),), (), (), settings.Run(), settings.Stack())
streams.fingerprint(streams.plan(of), [])
assert not {{"psycopg", "subprocess", "tomli"}} & set(sys.modules), sorted(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-S", "-c", script], cwd=Path(harness.__file__).parents[1], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
