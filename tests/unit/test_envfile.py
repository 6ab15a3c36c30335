"""test/.env: what is read from it, and what is said of each file that is none."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from harness import envfile, envwriter, settings
from harness.errors import StackFailure, UsageError
from harness.settings import ROLES, Settings
from harness.targets import HIDDEN

VARIABLES = {"application": "MC_DB_DSN", "test": "TEST_DATABASE_URL", "e2e": "E2E_DATABASE_URL", "maintenance": "MAINTENANCE_DATABASE_URL"}
NO_SHELL: dict[str, str] = {}


@pytest.fixture
def worktree(tmp_path: Path) -> Settings:
    """Return the settings of a worktree with the default databases and no test/.env."""
    root = tmp_path / "a shop~"
    (root / "test").mkdir(parents=True)
    (root / "harness.toml").write_text('[databases]\napplication = "app"\ntest = "app_test"\ne2e = "app_e2e"\n')
    return settings.load(root)


def dsns(port: int = 17001, login: str = "pw") -> dict[str, str]:
    """Return one DSN per role."""
    return {role: f"postgresql://{role}:{login}@127.0.0.1:{port}/{role}" for role in ROLES}


def path_of(worktree: Settings) -> Path:
    """Return the file's place."""
    return worktree.root / "test/.env"


def write(worktree: Settings, values: Mapping[str, str], written: Mapping[str, str], *, force: bool = False) -> dict[str, str]:
    """Write the bootstrap's lines."""
    return envwriter.write(worktree, values, force=force, written=written)


def test_what_was_written_is_read(worktree: Settings) -> None:
    """Every role's DSN comes back byte for byte, from a file that nobody else may read."""
    write(worktree, dsns(), {})
    env = envfile.load(worktree, NO_SHELL)
    assert {role: dsn.text for role, dsn in env.dsns.items()} == dsns()
    assert {role: dsn.variable for role, dsn in env.dsns.items()} == VARIABLES
    assert (env.shell_application, env.warnings) == (None, ())
    assert path_of(worktree).stat().st_mode & 0o777 == 0o600
    assert list((worktree.root / "test/.stack").iterdir()) == []


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda _: None, "there is no"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.symlink_to("nowhere"), "is a link to 'nowhere', which does not exist"),
        (lambda path: path.write_bytes(b" \n\n"), "is empty"),
        (lambda path: path.write_bytes("A=1\n".encode("utf-16")), "is not UTF-8: line 1 has the byte 0xff"),
        (lambda path: path.write_bytes(b"A=1\n\n# caf\xe9\n"), "is not UTF-8: line 3 has the byte 0xe9"),
        (lambda path: path.write_text("A=1\n"), "does not say which worktree it was made for (HARNESS_WORKTREE)"),
        (lambda path: path.write_text("HARNESS_WORKTREE=/else%20where\n"), "was made for the worktree '/else where'"),
        (lambda path: path.write_text("A=1\n\nnot a = 'line\n"), ", line 3, is not NAME=value"),
        (lambda path: path.write_text("A=1\nword\n"), ", line 2, is not NAME=value"),
        (lambda path: path.write_text("A=1\n# \0\n"), ", line 2, is not NAME=value"),
        (lambda path: path.write_text("TEST_DATABASE_URL=a\nB=1\nTEST_DATABASE_URL=b\n"), "has TEST_DATABASE_URL twice, in lines 1 and 3"),
    ],
    ids=[
        "missing",
        "folder",
        "dangling",
        "empty",
        "UTF-16",
        "Latin-1",
        "unstamped",
        "foreign",
        "broken line",
        "bare word",
        "NUL",
        "double key",
    ],
)
def test_each_fault_has_its_own_sentence(make: Callable[[Path], object], said: str, worktree: Settings) -> None:
    """Exit code 2, the file's name, what is wrong with it, and what to do."""
    make(path_of(worktree))
    with pytest.raises(UsageError) as caught:
        envfile.load(worktree, NO_SHELL)
    assert caught.value.message.startswith((str(path_of(worktree)), f"there is no {path_of(worktree)}"))
    assert said in caught.value.message
    assert caught.value.next


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_an_unreadable_file(worktree: Settings) -> None:
    """The system's own reason is given."""
    write(worktree, dsns(), {})
    path_of(worktree).chmod(0)
    with pytest.raises(UsageError, match="Permission denied"):
        envfile.load(worktree, NO_SHELL)


def test_a_missing_variable_is_named_when_it_is_needed(worktree: Settings) -> None:
    """A file without one DSN is fine until that one is asked for."""
    write(worktree, dsns(), {})
    path_of(worktree).write_text(path_of(worktree).read_text().replace("E2E_DATABASE_URL=", "#"))
    env = envfile.load(worktree, {"E2E_DATABASE_URL": dsns(1)["e2e"]})
    with pytest.raises(UsageError) as caught:
        env.dsn("e2e")
    assert str(caught.value) == f"{path_of(worktree)} has no E2E_DATABASE_URL. Run test/bootstrap-stack.sh."


@pytest.mark.parametrize(
    ("value", "port"),
    [
        ("", None),
        (HIDDEN, None),
        ("sqlite:///app.db", None),
        ("mysql+pymysql://u:p@h/d", None),
        (dsns()["application"], None),
        (dsns()["application"].replace("postgresql:", "postgresql+psycopg:"), None),
        ("postgresql+asyncpg://u:p@h:7/d", 7),
        ("postgres://u:p@h:8/d", 8),
        ("host=h port=9 user=u dbname=d", 9),
    ],
)
def test_the_shells_application_database_is_known_too(value: str, port: int | None, worktree: Settings) -> None:
    """Where the shell names another application database it is one more to protect; other systems' and the hidden one are not."""
    write(worktree, dsns(), {})
    env = envfile.load(worktree, {"MC_DB_DSN": value})
    assert (env.shell_application.port if env.shell_application else None) == port
    assert len(env.warnings) == (port is not None)


def test_an_unreadable_shell_application_is_refused(worktree: Settings) -> None:
    """What cannot be understood cannot be protected."""
    write(worktree, dsns(), {})
    with pytest.raises(UsageError, match="MC_DB_DSN"):
        envfile.load(worktree, {"MC_DB_DSN": "postgresql://u:p@ss@h/d"})


def test_one_warning_line_per_variable_and_no_password(worktree: Settings) -> None:
    """Both places are named, the passwords are not; another spelling of one variable is no concern of the others."""
    write(worktree, dsns(), {})
    shell = {"TEST_DATABASE_URL": dsns(17002, "hidden-one")["test"], "E2E_DATABASE_URL": "rubbish://x", "PATH": "/bin"}
    assert envfile.load(worktree, shell).warnings == (
        "TEST_DATABASE_URL in the shell (127.0.0.1:17002/test) is not test/.env's (127.0.0.1:17001/test); the file counts.",
        "E2E_DATABASE_URL in the shell (not a PostgreSQL connection string) is not test/.env's (127.0.0.1:17001/e2e); the file counts.",
    )


def test_writing_again_changes_nothing(worktree: Settings) -> None:
    """The same values leave the very same file."""
    written = write(worktree, dsns(), {})
    before = path_of(worktree).stat()
    assert write(worktree, dsns(), written) == written
    assert path_of(worktree).stat() == before


def test_a_line_changed_by_hand_is_never_overwritten_silently(worktree: Settings) -> None:
    """The line is named; --force rewrites it; the bootstrap's own last values are no change by hand."""
    written = write(worktree, dsns(), {})
    path_of(worktree).write_text("# mine\n" + path_of(worktree).read_text().replace("/e2e\n", "/other\n"))
    kept = path_of(worktree).read_text()
    with pytest.raises(UsageError, match=r"line 4: E2E_DATABASE_URL was changed by hand"):
        write(worktree, dsns(17002), written)
    assert path_of(worktree).read_text() == kept
    written = write(worktree, dsns(17002), written, force=True)
    assert write(worktree, dsns(17003), written)
    assert {dsn.port for dsn in envfile.load(worktree, NO_SHELL).dsns.values()} == {17003}


def test_a_changed_worktree_line_is_a_change_by_hand(worktree: Settings) -> None:
    """With the other lines ours the file was not copied along."""
    written = write(worktree, dsns(), {})
    path_of(worktree).write_text(path_of(worktree).read_text().replace("a%20shop%7E", "else"))
    with pytest.raises(UsageError, match="HARNESS_WORKTREE was changed by hand"):
        write(worktree, dsns(), written)


@pytest.mark.parametrize("text", ["", "\n", "A=1", "A=1\n", "\ufeffA=1\r\n", "export A='it is'\n\n# end", 'A="\nb\n"\n'])
def test_other_lines_are_kept(text: str, worktree: Settings) -> None:
    """Before and after, whatever their endings; only a byte order mark goes, which bash would take for part of a name."""
    path_of(worktree).write_bytes(text.encode())
    written = write(worktree, dsns(), {})
    write(worktree, dsns(17009), written)
    now = path_of(worktree).read_bytes().decode()
    own = text.removeprefix("\ufeff").rstrip("\n")
    assert now.startswith(own)
    assert {dsn.port for dsn in envfile.load(worktree, NO_SHELL).dsns.values()} == {17009}


def test_a_link_is_replaced_by_a_file(worktree: Settings, tmp_path: Path) -> None:
    """A link into another worktree's file: that file is left as it is."""
    other = tmp_path / "other.env"
    other.write_text("A=1\n")
    path_of(worktree).symlink_to(other)
    write(worktree, dsns(), {})
    assert other.read_text() == "A=1\n"
    assert not path_of(worktree).is_symlink()
    assert path_of(worktree).read_text().startswith("A=1\n")


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("postgresql://u:p@h:1/d?a=1&b=2", "'postgresql://u:p@h:1/d?a=1&b=2'"),
        ("postgresql://u:p@[::1]:1/d", "'postgresql://u:p@[::1]:1/d'"),
        ("postgresql://u:p'$x@h:1/d", "postgresql://u:p%27%24x@h:1/d"),
        ("postgresql://u:p(;~!*)@h:1/d", "postgresql://u:p%28%3B%7E%21%2A%29@h:1/d"),
    ],
)
def test_external_values_are_written_so_that_all_read_them_alike(value: str, line: str, worktree: Settings) -> None:
    """Quotes only where a URL cannot say it otherwise; everything that a shell could act on is percent-encoded."""
    write(worktree, {**dsns(), "application": value}, {})
    assert path_of(worktree).read_text().splitlines()[0] == f"MC_DB_DSN={line}"


def test_a_folder_that_cannot_be_written(worktree: Settings) -> None:
    """The system's reason is given, and nothing is left."""
    (worktree.root / "test/.stack").write_text("in the way")
    with pytest.raises(StackFailure, match=r"\.stack cannot be made"):
        write(worktree, dsns(), {})
    assert not path_of(worktree).exists()


def test_no_program_of_the_users_lines_is_run(worktree: Settings, tmp_path: Path) -> None:
    """Reading back with bash starts nothing and writes nothing, whatever stands in the file."""
    mark = tmp_path / "pwned"
    path_of(worktree).write_text(f"A=$(id >{mark})\nB=`touch {mark}`\nC=1; /bin/touch {mark}\n")
    write(worktree, dsns(), {})
    assert not mark.exists()
