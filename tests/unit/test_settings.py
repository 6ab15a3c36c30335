"""harness.toml: what it says, what it may leave out, and how each fault is told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from harness import settings
from harness.errors import UsageError
from harness.settings import DEFAULT_DATABASES, Package, Run, Stack, Stream, find_root, load

DESIGN = """
[databases]
application = "mc"
test = "mc_test"
e2e = "mc_e2e"
maintenance = "postgres"

[[migrations]]
stream = "platform"
directory = "migrations/platform"

[[migrations]]
stream = "billing"
directory = "migrations/billing"
as = "maintenance"

[[migrations]]
stream = "orm"
command = ["alembic", "upgrade", "head"]
variable = "ALEMBIC_URL"
url = "postgresql+psycopg"
inputs = ["alembic/**/*.py"]
timeout = 30

[packages]
test = ["tests/orgs", { path = "tests/go", command = ["go", "test", "./..."], timeout = 600, name = "go", junit = "out.xml" }]
e2e = [{ path = "tests/e2e/signup/", allow_empty = true, allow_residue = true }]

[environment]
DATABASE_URL = "{url}"

[run]
fork = false
residue = "fail"
strict = "always"
grace = 0.5

[stack]
server = "embedded"
major = 16
ports = [17100, 17200]
durable = true
directory = "/srv/stacks"
createdb = true
[stack.settings]
shared_buffers = "64MB"
max_connections = 50
jit = false
"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Return a function that writes harness.toml and loads it."""

    def write_and_load(text: str | bytes) -> settings.Settings:
        (tmp_path / "harness.toml").write_bytes(text.encode() if isinstance(text, str) else text)
        return load(tmp_path)

    return write_and_load


def test_every_key_of_the_design_is_read(write: Any, tmp_path: Path) -> None:
    """Each key arrives under its own name."""
    found = write(DESIGN)
    assert found.root == tmp_path.resolve()
    assert [(database.role, database.name, database.variable) for database in found.databases] == [
        ("application", "mc", "MC_DB_DSN"),
        ("test", "mc_test", "TEST_DATABASE_URL"),
        ("e2e", "mc_e2e", "E2E_DATABASE_URL"),
        ("maintenance", "postgres", "MAINTENANCE_DATABASE_URL"),
    ]
    assert found.streams == (
        Stream("platform", directory="migrations/platform"),
        Stream("billing", directory="migrations/billing", as_maintenance=True),
        Stream(
            "orm",
            command=("alembic", "upgrade", "head"),
            variable="ALEMBIC_URL",
            scheme="postgresql+psycopg",
            inputs=("alembic/**/*.py",),
            timeout=30.0,
        ),
    )
    assert found.packages == (
        Package("tests/orgs", "test", "tests/orgs"),
        Package("go", "test", "tests/go", command=("go", "test", "./..."), timeout=600.0, junit="out.xml"),
        Package("tests/e2e/signup", "e2e", "tests/e2e/signup", allow_empty=True, allow_residue=True),
    )
    assert found.environment == (("DATABASE_URL", "{url}"),)
    assert found.run == Run(fork=False, residue="fail", strict="always", grace=0.5)
    assert found.stack == Stack(
        "embedded",
        16,
        (17100, 17200),
        True,
        "/srv/stacks",
        True,
        (("shared_buffers", "64MB"), ("max_connections", "50"), ("jit", "off")),
    )


def test_an_empty_file_means_the_defaults(write: Any) -> None:
    """Whatever can be left out has one default, in the value's own class."""
    found = write("")
    assert found.databases == DEFAULT_DATABASES
    assert (found.streams, found.packages, found.environment) == ((), (), ())
    assert (found.run, found.stack) == (Run(), Stack())


def test_e2e_may_be_left_out(write: Any) -> None:
    """A repository with one class of tests has one test database."""
    found = write('[databases]\napplication = "shop"\ntest = "shop_test"\n')
    assert [database.role for database in found.databases] == ["application", "test", "maintenance"]
    assert found.test_roles == ("test",)
    with pytest.raises(UsageError, match="has no e2e database"):
        found.database("e2e")


def test_an_adopters_own_variable(write: Any) -> None:
    """A name, a variable or both may be told."""
    found = write('[databases]\napplication = { name = "shop", variable = "DATABASE_URL" }\ntest = { variable = "SHOP_TEST" }\n')
    assert found.database("application") == ("application", "shop", "DATABASE_URL")
    assert found.database("test").variable == "SHOP_TEST"
    assert found.database("test").name == DEFAULT_DATABASES[1].name


def test_a_byte_order_mark_does_no_harm(write: Any) -> None:
    """Editors on Windows write one."""
    assert write(b"\xef\xbb\xbf[run]\r\ngrace = 1\r\n").run.grace == 1.0


WRONG = {
    # file
    "not TOML": ("[run\n", "is not valid TOML", "line 1"),
    "a doubled table": ("[run]\n[run]\n", "is not valid TOML", "run"),
    # unknown keys
    "a table": ("[database]\n", "unknown key 'database'", "Did you mean 'databases'?"),
    "a database": ('[databases]\ntests = "x"\n', "[databases] has the unknown key 'tests'", "Did you mean 'test'?"),
    "a key of run": ("[run]\nforks = true\n", "[run] has the unknown key 'forks'", "Did you mean 'fork'?"),
    "a key of stack": ("[stack]\nport = [1024, 1025]\n", "[stack] has the unknown key 'port'", "Did you mean 'ports'?"),
    "a key like none": ("[run]\nzzz = 1\n", "unknown key 'zzz'", "Known here: fork, residue, strict, grace."),
    "a key of a stream": ('[[migrations]]\nstream = "a"\ndir = "x"\n', "[[migrations]] number 1 has the unknown key 'dir'", "'directory'"),
    "a key of a package": (
        '[packages]\ntest = ["a", { path = "b", time_out = 1 }]\n',
        "[packages] test, entry 2, has the unknown key",
        "'timeout'",
    ),
    "a key of a database": ('[databases]\ntest = { nam = "x" }\n', "[databases.test] has the unknown key 'nam'", "Did you mean 'name'?"),
    "a class of packages": ('[packages]\nunit = ["a"]\n', "[packages] has the unknown key 'unit'", "Known here: test, e2e."),
    # wrong values
    "databases": ("databases = 1\n", "[databases] is 1, not a table", "table"),
    "a database's name": ("[databases]\ntest = 1\n", "[databases.test] is 1, not a table", "table"),
    "an empty name": ('[databases]\ntest = " "\n', "[databases] test is ' '", "a name"),
    "a DSN as name": ('[databases]\ntest = "postgresql://h/t"\n', "[databases] test is 'postgresql://h/t'", "a name"),
    "a variable": ('[databases]\ntest = { variable = "A-B" }\n', "variable is 'A-B'", "the name of an environment variable"),
    "a long name": (f'[databases]\ntest = "{"x" * 64}"\n', "a database of 64 bytes", "shorter"),
    "a doubled name": ('[databases]\napplication = "x"\ntest = "x"\n', "name 'x' stands twice", "differ"),
    "a doubled variable": (
        '[databases]\napplication = { variable = "TEST_DATABASE_URL" }\n',
        "variable 'TEST_DATABASE_URL' stands twice",
        "differ",
    ),
    "migrations": ("[migrations]\n", "migrations is {}", "[[migrations]]"),
    "a stream": ("[[migrations]]\n", "number 1 has no stream", "stream = "),
    "neither": ('[[migrations]]\nstream = "a"\n', "needs either directory or command", "one of them"),
    "both": ('[[migrations]]\nstream = "a"\ndirectory = "d"\ncommand = ["c"]\n', "needs either directory or command", "one of them"),
    "a doubled stream": (2 * '[[migrations]]\nstream = "a"\ndirectory = "d"\n', "stream 'a' stands twice", "differ"),
    "a command as text": (
        '[[migrations]]\nstream = "a"\ncommand = "alembic upgrade"\n',
        "command is 'alembic upgrade'",
        "a list of arguments",
    ),
    "an empty command": ('[[migrations]]\nstream = "a"\ncommand = []\n', "command is []", "a list of arguments"),
    "as": ('[[migrations]]\nstream = "a"\ndirectory = "d"\nas = "su"\n', "as is 'su'", "'maintenance'"),
    "inputs": ('[[migrations]]\nstream = "a"\ncommand = ["c"]\ninputs = "*.py"\n', "inputs is '*.py'", "a list of file patterns"),
    "a timeout of 0": ('[[migrations]]\nstream = "a"\ncommand = ["c"]\ntimeout = 0\n', "timeout is 0", "seconds above 0"),
    "packages": ('[packages]\ntest = "tests"\n', "[packages] test is 'tests'", "a list of packages"),
    "a package": ("[packages]\ntest = [1]\n", "[packages] test, entry 1, is 1, not a table", "table"),
    "a package without path": ('[packages]\ntest = [{ name = "a" }]\n', "entry 1, has no path", "path = "),
    "a doubled package": ('[packages]\ntest = ["a", "a/"]\n', "[packages] name 'a' stands twice", "differ"),
    "one package in both classes": ('[packages]\ntest = ["a"]\ne2e = ["a"]\n', "[packages] name 'a' stands twice", "differ"),
    "a flag as text": ('[packages]\ntest = [{ path = "a", allow_empty = "yes" }]\n', "allow_empty is 'yes'", "true or false"),
    "an endless timeout": ('[packages]\ntest = [{ path = "a", timeout = inf }]\n', "timeout is inf", "seconds above 0"),
    "e2e packages without database": (
        '[databases]\ntest = "t"\n[packages]\ne2e = ["a"]\n',
        "e2e packages but no e2e database",
        '`e2e = "NAME"`',
    ),
    "environment": ("[environment]\nA = 1\n", "[environment] A is 1", "text"),
    "an environment variable's name": ('[environment]\n"A=B" = "x"\n', "[environment] has the key 'A=B'", "letters, digits"),
    "fork": ("[run]\nfork = 1\n", "[run] fork is 1", "true or false"),
    "residue": ('[run]\nresidue = "loud"\n', "[run] residue is 'loud'", "'warn', 'off' or 'fail'"),
    "strict": ("[run]\nstrict = true\n", "[run] strict is True", "'ci', 'always' or 'never'"),
    "grace": ("[run]\ngrace = nan\n", "[run] grace is nan", "seconds above 0"),
    "server": ('[stack]\nserver = "docker"\n', "[stack] server is 'docker'", "auto, system, embedded, external"),
    "major": ("[stack]\nmajor = 12\n", "[stack] major is 12", "from 13"),
    "ports": ("[stack]\nports = 17000\n", "[stack] ports is 17000", "[first, last]"),
    "one port": ("[stack]\nports = [17000]\n", "[stack] ports is [17000]", "[first, last]"),
    "ports in reverse": ("[stack]\nports = [17999, 17000]\n", "[stack] ports is", "[first, last]"),
    "privileged ports": ("[stack]\nports = [80, 90]\n", "[stack] ports is [80, 90]", "1024"),
    "durable": ('[stack]\ndurable = "on"\n', "[stack] durable is 'on'", "true or false"),
    "directory": ("[stack]\ndirectory = 1\n", "[stack] directory is 1", "a folder"),
    "createdb": ("[stack]\ncreatedb = 1\n", "[stack] createdb is 1", "true or false"),
    "a server setting": ("[stack.settings]\njit = [1]\n", "[stack.settings] jit is [1]", "text, a number"),
}


@pytest.mark.parametrize(("text", "finding", "advice"), WRONG.values(), ids=WRONG)
def test_a_fault_is_told_with_file_table_key_and_what_is_wanted(text: str, finding: str, advice: str, write: Any, tmp_path: Path) -> None:
    """Nothing wrong is passed over, and nothing is taken for something else."""
    with pytest.raises(UsageError) as caught:
        write(text)
    assert caught.value.code == 2
    assert caught.value.message.startswith(str(tmp_path / "harness.toml"))
    assert finding in caught.value.message
    assert advice in str(caught.value)


def test_a_dsn_in_the_wrong_place_does_not_show_its_password(write: Any) -> None:
    """Whoever pastes a DSN into harness.toml reads where it stands, not what it says."""
    for text in (
        '[databases]\ntest = "postgresql://u:hush-hush@h/t"\n',
        '[databases]\ntest = { variable = "postgresql://u:hush-hush@h/t" }\n',
        '[run]\nresidue = "postgresql://u:hush-hush@h/t"\n',
        'databases = "postgresql://u:hush-hush@h/t"\n',
    ):
        with pytest.raises(UsageError) as caught:
            write(text)
        assert "hush" not in str(caught.value)


def test_another_encoding_is_named(write: Any) -> None:
    """UTF-16 is no TOML."""
    with pytest.raises(UsageError, match=r"is not UTF-8 \(byte 0\)"):
        write("[run]\n".encode("utf-16"))


def test_a_folder_for_a_file_is_named(tmp_path: Path) -> None:
    """What the system says stands in the message."""
    (tmp_path / "harness.toml").mkdir()
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        load(tmp_path)


def test_the_root_is_found_from_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command may be given in any folder of the worktree."""
    (tmp_path / "harness.toml").write_text("")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert find_root(below) == tmp_path.resolve()
    monkeypatch.chdir(below)
    assert find_root() == tmp_path.resolve()


def test_the_root_is_the_real_path(tmp_path: Path) -> None:
    """Identity is where the worktree really lies, not the link that led there."""
    real = tmp_path / "real"
    real.mkdir()
    (real / "harness.toml").write_text("")
    (tmp_path / "link").symlink_to(real)
    assert find_root(tmp_path / "link") == real.resolve()
    assert load(tmp_path / "link").root == real.resolve()


@pytest.mark.parametrize("git", ["folder", "file"])
def test_a_worktree_without_settings_does_not_take_the_outer_ones(git: str, tmp_path: Path) -> None:
    """The search ends at the worktree's top, whether it is a repository or a linked worktree."""
    (tmp_path / "harness.toml").write_text("")
    inner = tmp_path / "inner"
    (inner / "tests").mkdir(parents=True)
    (inner / ".git").mkdir() if git == "folder" else (inner / ".git").write_text("gitdir: elsewhere\n")
    with pytest.raises(UsageError, match=r"there is no harness\.toml in .*inner/tests") as caught:
        find_root(inner / "tests")
    assert "harness init" in caught.value.next


def test_libpqs_environment_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """PGHOSTADDR beats a DSN's host: nothing of PG* stays in this process."""
    monkeypatch.setenv("PGHOSTADDR", "192.0.2.1")
    monkeypatch.setenv("PGSERVICE", "prod")
    monkeypatch.setenv("PAGER", "less")
    settings.forget_libpq_environment()
    assert [name for name in os.environ if name.startswith("PG")] == []
    assert settings.environment()["PAGER"] == "less"


def test_the_environment_is_handed_out_as_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody changes this process's variables through it."""
    monkeypatch.delenv("SOMETHING", raising=False)
    settings.environment()["SOMETHING"] = "x"
    assert "SOMETHING" not in os.environ


def test_each_default_stands_in_one_place() -> None:
    """No second literal of a default hides in the code below: documents and help text take it from the classes."""
    source = Path(settings.__file__).read_text()
    for literal in (
        "17000",
        "17999",
        '"auto"',
        '"test/.stack"',
        '"app_test"',
        '"app_e2e"',
        "300.0",
        '"TEST_DATABASE_URL"',
        '"E2E_DATABASE_URL"',
    ):
        expected = 2 if literal == '"auto"' else 1  # also in the list of servers
        assert source.count(literal) == expected, literal
