"""ENV-01 to ENV-03 on a real cluster: test/.env as bash, python-dotenv and the harness read it."""

from __future__ import annotations

import errno
import io
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dotenv import dotenv_values

from tests.cluster.place import Place

PASSWORDS = [
    "a$b",
    "a$$b",
    "a${HOME}b",
    "a#b",
    "a #b",
    "a&b",
    "a'b",
    'a"b',
    "a\\b",
    "a b",
    "a$(id>pwned)b",
    "a`id`b",
    "ä~!*()[]{}|;<>,+%25@/:?=",
]


def by_bash(place: Place, variable: str) -> str:
    """Return what sourcing the file gives."""
    script = f'set -a; . test/.env; printf %s "${variable}"'
    shell = ["bash", "-c", script]
    env = {"PATH": os.environ["PATH"]}
    return subprocess.run(shell, cwd=place.root, env=env, capture_output=True, text=True, check=True).stdout


def by_dotenv(place: Place, variable: str) -> str | None:
    """Return what python-dotenv's own defaults give."""
    return dotenv_values(stream=io.StringIO((place.root / "test/.env").read_text()))[variable]


def test_every_password_reads_the_same_everywhere(place: Place) -> None:
    """ENV-01: three readers, one value, a login with it, and nothing executed; a changed HARNESS_PASSWORD reaches the roles."""
    for password in PASSWORDS:
        place.up(env={"HARNESS_PASSWORD": password}).expect(0)
        for variable in ("MC_DB_DSN", "TEST_DATABASE_URL", "E2E_DATABASE_URL", "MAINTENANCE_DATABASE_URL"):
            assert place.variables()[variable] == by_bash(place, variable) == by_dotenv(place, variable)
        assert place.value("SELECT 1") == 1
        assert place.value("SELECT 1", "MC_DB_DSN") == 1
        with place.connect() as connection:
            assert connection.info.password == password
        done = place.run("env", command="harness").expect(0)
        assert password not in done.output
        place.up().expect(0)
        with place.connect() as connection:
            assert connection.info.password == password, "an unset HARNESS_PASSWORD keeps the password"
    place.run("reset", command="harness").expect(0)
    assert list(place.root.rglob("pwned")) == []
    assert not any(password in (place.stack / "log").read_text() for password in PASSWORDS if len(password) > 5)


def test_an_ampersand_without_quotes_is_kept(place: Place) -> None:
    """ENV-01: a hand-written DSN with & means all of it to the harness."""
    place.up().expect(0)
    text = (place.root / "test/.env").read_text()
    line = next(line for line in text.splitlines() if line.startswith("TEST_DATABASE_URL="))
    place.write("test/.env", text.replace(line, f"{line}?application_name=a&sslmode=disable"))
    place.run("reset", command="harness").expect(0)
    place.up().expect(2, "TEST_DATABASE_URL was changed by hand", "line 2")
    place.up("--force").expect(0)
    assert (place.root / "test/.env").read_text() == text


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: text.replace("\n", "\r").encode(),
        lambda text: text.encode() + b"# caf\xc3\xa9\n",
    ],
    ids=["CRLF", "byte order mark", "CR", "UTF-8"],
)
def test_files_from_other_editors_are_read(change: Callable[[str], bytes], place: Place) -> None:
    """ENV-02: every value whole, no CR at its end, and the script's run over such a file ends well."""
    place.up().expect(0)
    path = place.root / "test/.env"
    path.write_bytes(change(path.read_text()))
    place.run("reset", command="harness").expect(0, "shop_test")
    place.bootstrap().expect(0)


@pytest.mark.parametrize(
    "change", [lambda text: text.encode("utf-16"), lambda text: text.encode() + b"X=1 # caf\xe9\n"], ids=["UTF-16", "Latin-1"]
)
def test_other_encodings_are_refused(change: Callable[[str], bytes], place: Place) -> None:
    """ENV-02: the message names the file and what it is not."""
    place.up().expect(0)
    path = place.root / "test/.env"
    path.write_bytes(change(path.read_text()))
    place.run("reset", command="harness").expect(2, str(path), "not UTF-8")
    kept = path.read_bytes()
    place.up().expect(2, "not UTF-8")
    assert path.read_bytes() == kept


def test_a_stale_export_of_another_worktree_loses(place: Place, make_place: Callable[..., Place]) -> None:
    """ENV-03: the file counts, one line tells of the difference, and the other worktree is untouched."""
    other = make_place("other")
    for one in (place, other):
        one.up().expect(0)
        one.run("reset", command="harness").expect(0)
    oid = "SELECT oid::int8 FROM pg_database WHERE datname = 'shop_test'"
    before, others = place.value(oid), other.value(oid)
    stale = other.variables()
    done = place.run("reset", command="harness", env={"TEST_DATABASE_URL": stale["TEST_DATABASE_URL"]}).expect(0)
    told = [line for line in done.output.splitlines() if "TEST_DATABASE_URL" in line]
    assert len(told) == 1
    for one in (place, other):
        assert f"127.0.0.1:{one.record['port']}/shop_test" in told[0]
        assert one.variables()["TEST_DATABASE_URL"].split("@")[0].rpartition(":")[2] not in done.output
    assert place.value(oid) != before
    assert other.value(oid) == others
    path = place.root / "test/.env"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if not line.startswith("E2E_")))
    place.run("reset", "--database", "e2e", command="harness", env={"E2E_DATABASE_URL": stale["E2E_DATABASE_URL"]}).expect(
        2, "E2E_DATABASE_URL", str(path)
    )
    assert other.value(oid) == others


@pytest.mark.parametrize(
    "words", [("inv", "--list"), ("inv", "--help", "reset"), ("harness", "--list"), ("inv", "--complete")], ids=" ".join
)
def test_a_broken_file_does_not_break_help(words: tuple[str, ...], place: Place) -> None:
    """Help, the list of tasks and completion work whatever test/.env is."""
    path = place.root / "test/.env"
    for make in (
        path.unlink,
        path.mkdir,
        path.rmdir,
        lambda: path.symlink_to("nowhere"),
        path.unlink,
        lambda: path.write_bytes(b"\xff\xfe'"),
    ):
        if make != path.unlink or path.exists() or path.is_symlink():
            make()
        place.run(*words[1:], command=words[0]).expect(0, "reset")


def test_a_full_disk_keeps_the_old_file(make_place: Callable[..., Place], ground: Path) -> None:
    """BOOT-06d: no space for the new test/.env: the old one is as it was, and the reason is said."""
    if os.geteuid() != 0:
        pytest.skip("needs uid 0: to mount a small file system")
    place = make_place("full", f'directory = "{ground}/clusters"')
    place.up().expect(0)
    kept, folder = ground / "kept", place.root / "test"
    script = f"""set -e
        cp -a "{folder}" "{kept}"
        mount -t tmpfs -o size=64k,mode=755 tmpfs "{folder}"
        cp -a "{kept}/." "{folder}/"
        dd if=/dev/zero of="{folder}/full" bs=1k 2>/dev/null || true
        code=0; "$0" "$@" || code=$?
        cmp "{folder}/.env" "{kept}/.env"
        exit $code"""
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, *place.argv("stack-up", command="harness")],  # noqa: S607  # of util-linux
        cwd=place.root,
        env=place.environment({"HARNESS_PASSWORD": "another"}),
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr}")
    assert os.strerror(errno.ENOSPC) in done.stderr
    assert done.returncode == 5, done.stdout + done.stderr


def test_the_users_lines_stay_byte_for_byte(place: Place) -> None:
    """The bootstrap owns five lines; it mends those and keeps every other byte, in place and order."""
    mine = "# mine\nexport A='x y'\nB=1 # one\n\n   \nC=\"\n two lines\"\n"
    place.write("test/.env", mine)
    place.up().expect(0)
    text = (place.root / "test/.env").read_text()
    assert text.startswith(mine)
    assert text.count("\n") == mine.count("\n") + 5
    place.write("test/.env", "FIRST=1\r\n" + text + "LAST=1")
    place.up(env={"HARNESS_PASSWORD": "new"}).expect(0)
    now = (place.root / "test/.env").read_bytes().decode()
    assert now.startswith("FIRST=1\r\n" + mine)
    assert now.endswith("LAST=1")
    assert now.count(":new@") == 4


def test_a_line_that_would_swallow_ours_is_refused(place: Place) -> None:
    """Bash would read on from an open quote of the user's: the file is not installed, and the old one stays."""
    place.write("test/.env", "NOTE=it's\nOTHER=it's\n")
    place.up().expect(0)
    place.write("test/.env", "NOTE=it's\n")
    place.up().expect(2, "bash", "quotes")
    assert (place.root / "test/.env").read_text() == "NOTE=it's\n"


def test_only_a_random_password_of_our_own_sessions_is_cheap_to_check(place: Place) -> None:
    """The superuser's random password is checked with one iteration; what a driver or a person has to do with keeps 4,096."""
    query = "SELECT split_part(rolpassword, '$', 2) LIKE '1:%' FROM pg_authid WHERE rolname = {}"

    def is_light(role: str) -> Any:
        return place.value(query.format(role))

    place.up().expect(0)
    assert is_light("current_user")
    assert not any(is_light(f"'{name}'") for name in ("shop", "shop_test", "shop_e2e"))
    place.up(env={"HARNESS_PASSWORD": "chosen"}).expect(0)
    assert not is_light("current_user")
