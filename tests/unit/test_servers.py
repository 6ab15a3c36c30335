"""Servers: which folders count, and as whom their programs run; with programs that only tell a version."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness import datafolder, postmaster, servers
from harness.errors import StackFailure


def programs(folder: Path, version: str, names: tuple[str, ...] = servers.PROGRAMS) -> Path:
    """Make a folder with programs of a version; an empty one fails as with a missing library."""
    folder.mkdir(parents=True)
    for name in names:
        answer = f"echo '{name} (PostgreSQL) {version}'" if version else "echo 'cannot open shared object file' >&2; exit 127"
        (folder / name).write_text(f"#!/bin/sh\n{answer}\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let only folders of the test's own count."""
    monkeypatch.setattr(servers, "_PLACES", (f"{tmp_path}/lib/*/bin",))
    monkeypatch.setenv("PATH", f"{tmp_path}/path")
    monkeypatch.setattr(servers, "EMBEDDED", "no_such_package")
    return tmp_path


def test_the_newest_whole_server_is_taken(places: Path) -> None:
    """By number, not by text; one that does not run or lacks a program is passed over."""
    programs(places / "lib/9/bin", "9.6.1")
    programs(places / "lib/15/bin", "15.4 (Debian 15.4-1)")
    best = programs(places / "lib/16/bin", "16beta1")
    programs(places / "lib/17/bin", "")
    programs(places / "lib/18/bin", "18.1", ("pg_ctl", "postgres"))
    assert servers.find("auto", None) == servers.Server(best, (16, 0), False)
    assert servers.find("system", 15).version == (15, 4)


def test_all_places_are_told_when_nothing_is_found(places: Path) -> None:
    """Each place, and why what lies there does not count; three ways out."""
    programs(places / "lib/17/bin", "")
    programs(places / "lib/18/bin", "18.1", ("pg_config",))
    with pytest.raises(StackFailure) as caught:
        servers.find("auto", None)
    for phrase in (
        "PATH",
        "lib/*/bin",
        "17/bin (postgres --version fails: cannot open shared object file)",
        "18/bin (without initdb and pg_ctl and postgres)",
    ):
        assert phrase in caught.value.message
    for way in ("package manager", "--server embedded", "--server external"):
        assert way in caught.value.next


def test_a_client_only_installation_is_no_server(places: Path) -> None:
    """pg_config may name a folder without a server."""
    folder = programs(places / "path", "15.1", ("psql", "pg_config"))
    (folder / "pg_config").write_text(f"#!/bin/sh\necho {places}/client\n")
    (places / "client").mkdir()
    with pytest.raises(StackFailure, match="client \\(without"):
        servers.find("system", None)
    assert servers.client("psql", {"PATH": str(folder)}) == str(folder / "psql")


def test_a_link_on_the_path_leads_to_its_folder(places: Path) -> None:
    """Some installations link single programs into a folder of the PATH."""
    real = programs(places / "elsewhere", "14.9")
    (places / "path").mkdir()
    (places / "path/postgres").symlink_to(real / "postgres")
    assert servers.find("auto", None).programs == real


def test_the_embedded_servers_package_is_never_imported(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Python layer makes accounts and changes modes: only its folder is looked up."""
    package = places / "site/embedded_dummy"
    programs(package / "pginstall/bin", "18.6")
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(places / "site"))
    monkeypatch.setattr(servers, "EMBEDDED", "embedded_dummy")
    found = servers.find("auto", None)
    assert (found.major, found.embedded) == (18, True)
    programs(places / "lib/13/bin", "13.2")
    assert not servers.find("auto", None).embedded
    assert servers.find("auto", 18).embedded
    assert servers.find("embedded", None).embedded


def test_no_account_passes_a_private_folder(tmp_path: Path) -> None:
    """Modes are read as they are, and stay."""
    private = tmp_path / "private"
    (private / "data").mkdir(parents=True)
    private.chmod(0o700)
    mine, another = os.geteuid(), os.geteuid() + 1
    assert servers._reaches(mine, os.getegid(), private / "data")
    assert not servers._reaches(another, os.getegid() + 1, private / "data")
    assert private.stat().st_mode & 0o777 == 0o700


def test_a_servers_programs_get_no_locale_and_no_connection_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the shell says of locale, time zone and libpq ends here."""
    for name in ("LANG", "LC_ALL", "TZ", "PGDATA", "PGPORT", "PGOPTIONS", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, "xx")
    found = servers.child_environment()
    assert {name: value for name, value in found.items() if name != "PATH"} == {"LC_ALL": "C", "TZ": "UTC", "LD_LIBRARY_PATH": "xx"}


@pytest.mark.parametrize("text", ["", "17\n", "x\n/data\n1\n2\n", "17\n/data\nsoon\n17000\n"], ids=["empty", "begun", "no pid", "no time"])
def test_a_pid_file_in_the_making_says_nothing(text: str, tmp_path: Path) -> None:
    """Half of it is none of it."""
    (tmp_path / "postmaster.pid").write_text(text)
    assert postmaster.read(tmp_path) is None


@pytest.mark.parametrize(("status", "is_ready"), [("ready   ", True), ("starting", False), ("standby ", False)])
def test_a_pid_file_says_whether_the_server_is_ready(status: str, is_ready: bool, tmp_path: Path) -> None:  # noqa: FBT001  # a table's column
    """Its eighth line is the server's own word."""
    (tmp_path / "postmaster.pid").write_text(f"17\n/a b\n1700000000\n17001\n\n127.0.0.1\n  123 4\n{status}\n")
    assert postmaster.read(tmp_path) == postmaster.Postmaster(17, "/a b", 1700000000.0, 17001, is_ready)


def test_a_process_is_told_from_a_later_one() -> None:
    """The test's own process is itself, and is no server of any folder; a pid that is not there is nothing."""
    mine = postmaster.start_of(os.getpid())
    assert mine
    assert mine == postmaster.start_of(os.getpid())
    assert mine != postmaster.start_of(1)
    assert postmaster.start_of(0) == postmaster.start_of(2**22 + 1) == ""
    assert not postmaster.is_postmaster(os.getpid(), os.fspath(Path.cwd()))
    assert not postmaster.stop(os.getpid(), mine, os.fspath(Path.cwd()))
    assert not postmaster.stop(os.getpid(), "another start", "/data")


def test_the_locale_decides_order_and_not_the_machine() -> None:
    """C order everywhere; letters are known where the system has C.UTF-8."""
    options = datafolder.locale_options()
    assert "--encoding=UTF8" in options
    assert "--lc-collate=C" in options
    assert {option for option in options if option.startswith("--lc-ctype=")} <= {"--lc-ctype=C.UTF-8", "--lc-ctype=C"}


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("LOG:  a\nFATAL:  b\nLOG:  c\n", "FATAL:  b"),
        ("LOG:  a\nLOG:  b\n", "LOG:  b"),
        ("\n", "it says nothing"),
    ],
)
def test_the_logs_reason(log: str, expected: str, tmp_path: Path) -> None:
    """The last grave line, else the last line, of this start's part only."""
    path = tmp_path / "log"
    path.write_text("FATAL:  of an earlier start\n" + log)
    assert postmaster.reason(path, len("FATAL:  of an earlier start\n")) == expected
