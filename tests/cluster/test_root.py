"""BOOT-03 and BOOT-04: root, private folders, long paths; no mode of anybody's folder changed."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import servers
from tests.cluster.place import Place

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs uid 0: what root has to do differently")


def modes_above(folder: Path) -> list[int]:
    """Return the modes of every folder above."""
    return [stat.S_IMODE(path.stat().st_mode) for path in folder.parents]


def uid_inside(pid: int) -> int:
    """Return the uid that the server itself sees: the host's, unless it lives in a user namespace of its own."""
    outside = int(next(line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Uid:")))
    for line in Path(f"/proc/{pid}/uid_map").read_text().splitlines():
        inner, outer, count = map(int, line.split())
        if outer <= outside < outer + count:
            return inner + outside - outer
    raise AssertionError(f"pid {pid} has a uid outside its own map")


@as_root
def test_root_in_a_private_home(ground: Path, make_place: Callable[..., Place]) -> None:
    """BOOT-03: uid 0, a folder of mode 700 above, umask 077, HOME unset: the server is not root, twice, and no mode has changed."""
    private = ground / "private"
    private.mkdir(mode=0o700)
    place = make_place("private/the shop")
    before = modes_above(place.root)
    for said in ("user namespace", "is up"):
        place.bootstrap(env={"HOME": None}, before=("sh", "-c", 'umask 077; exec "$0" "$@"')).expect(0, said)
        assert uid_inside(place.postmaster()) != 0
        assert stat.S_IMODE(place.data.stat().st_mode) == 0o700
        assert stat.S_IMODE((place.root / "test/.env").stat().st_mode) == 0o600
    assert modes_above(place.root) == before
    place.run("reset", command="harness", env={"HOME": None}).expect(0)


@as_root
def test_root_steps_down_to_the_worktrees_owner(place: Place) -> None:
    """A worktree that belongs to an ordinary account is served by it."""
    uid = pwd.getpwnam("games").pw_uid
    for path in (place.root, *place.root.rglob("*")):
        os.chown(path, uid, uid)
    place.up().expect(0)
    assert place.data.stat().st_uid == uid
    assert uid_inside(place.postmaster()) == uid
    place.run("reset", command="harness").expect(0)


@as_root
def test_root_without_any_way_to_step_down(ground: Path, make_place: Callable[..., Place]) -> None:
    """BOOT-03, last variant: no account reaches the folder and namespaces are forbidden: one clear line, nothing half-made."""
    (ground / "private").mkdir(mode=0o700)
    place = make_place("private/the shop")
    programs = ground / "programs"
    programs.mkdir()
    refusing = programs / "unshare"
    refusing.write_text("#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n")
    refusing.chmod(0o755)
    done = place.up(env={"PATH": f"{programs}:{os.environ['PATH']}"}).expect(5, "root", "user namespaces", "[stack] directory")
    assert len(done.stderr.strip().splitlines()) == 1
    assert not place.data.exists()
    assert list(place.stack.glob("making-*")) == []
    assert not (place.root / "test/.env").exists()


@as_root
def test_a_uid_without_a_name(place: Place) -> None:
    """A container's arbitrary uid is not in the passwd database, and initdb insists on a name: a namespace lends one."""
    server = servers.find("auto", None)
    for path in (place.root, *place.root.rglob("*")):
        os.chown(path, 54321, 54321)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(54321)
            os.setuid(54321)
            os.write(writer, json.dumps(servers.choose_account(place.root, place.root, server)).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        prefix, user, _ = json.loads(stream.read())
    assert prefix[:2] == ["unshare", "--user"]
    assert user is None


@as_root
def test_a_cluster_moved_into_a_private_folder_is_still_served(ground: Path, place: Place) -> None:
    """Another account has to serve it there; the data changes hands and stays."""
    place.up().expect(0)
    identifier = place.record["system_identifier"]
    (ground / "private").mkdir(mode=0o700)
    place.root.rename(ground / "private/the shop")
    place.root = ground / "private/the shop"
    place.up().expect(0)
    assert place.record["system_identifier"] == identifier
    assert uid_inside(place.postmaster()) != 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs uid 0: to become an ordinary account")
def test_an_ordinary_account(ground: Path) -> None:
    """Without root, without an entry in the passwd database for more than its number, the account serves itself."""
    account = pwd.getpwnam("nobody")
    if not _reaches_interpreter(account.pw_uid):
        pytest.skip("this interpreter lies where no ordinary account may go")
    place = Place(ground / "own", ground / "own state")
    for folder in (place.root, place.state):
        subprocess.run(["chown", "-R", "nobody", str(folder)], check=True)  # noqa: S607  # chown is where the system has it
    done = subprocess.run(
        place.argv("stack-up", command="harness"),
        cwd=place.root,
        env=place.environment({"HOME": None}),
        user="nobody",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert place.data.stat().st_uid == account.pw_uid


def _reaches_interpreter(uid: int) -> bool:
    try:
        done = subprocess.run([sys.executable, "-c", "import harness, psycopg"], user=uid, cwd="/", capture_output=True, check=False)
    except PermissionError:
        return False
    return done.returncode == 0


@pytest.mark.parametrize("length", [150, 107 - len("/test/.stack/.s.PGSQL.18950"), 108 - len("/test/.stack/.s.PGSQL.18950")])
def test_a_long_path_is_no_obstacle(length: int, ground: Path, make_place: Callable[..., Place]) -> None:
    """BOOT-04: there is no socket whose path could be too long."""
    place = make_place("x" * (length - len(str(ground)) - 1))
    assert len(str(place.root)) == length
    place.up().expect(0)
    place.run("reset", command="harness").expect(0)
    assert place.value("SHOW unix_socket_directories") == ""
    place.run("stack-down", command="harness").expect(0)
    assert not (place.data / "postmaster.pid").exists()
    shutil.rmtree(place.root)
