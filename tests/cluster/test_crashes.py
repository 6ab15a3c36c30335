"""BOOT-06: two at once, killed at any moment, no space; and no signal for anyone who is not our server."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.place import SCRIPT, Place, is_running, postmasters_below, wait_until_gone

LINES = ("MC_DB_DSN=", "TEST_DATABASE_URL=", "E2E_DATABASE_URL=", "MAINTENANCE_DATABASE_URL=", "HARNESS_WORKTREE=")
IN_CI = 10


@pytest.fixture
def innocent() -> Iterator[int]:
    """Return a process that must never get a signal."""
    with subprocess.Popen(["sleep", "86400"]) as process:  # noqa: S607  # sleep is where the system has it
        yield process.pid
        assert process.poll() is None, "an innocent process was ended"
        process.kill()


def test_two_bootstraps_at_once(place: Place) -> None:
    """BOOT-06a: both end well with one server and one DSN, and whoever looks at test/.env sees all of it or nothing."""
    path = place.root / "test/.env"
    seen: set[int] = set()
    watching = threading.Event()

    def watch() -> None:
        while not watching.is_set():
            if path.exists():
                text = path.read_text()
                seen.add(sum(text.count(line) for line in LINES))

    watcher = threading.Thread(target=watch)
    watcher.start()
    both = [
        subprocess.Popen(
            [str(place.root / SCRIPT), "--python", place.argv(command="python")[0]],
            env=place.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    watching.set()
    watcher.join()
    assert [process.returncode for process in both] == [0, 0], outputs
    assert len(postmasters_below(place.root)) == 1
    assert all(f"port {place.record['port']}" in output for output in outputs)
    assert seen == {len(LINES)}


def test_a_bootstrap_survives_being_killed_at_any_moment(place: Place, ground: Path, innocent: int, rounds: int) -> None:
    """BOOT-06b: SIGKILL while making, starting or stopping; the next bootstrap ends well, and nobody else's server notices."""
    bystander = Place(ground / "bystander", ground / "other state")
    bystander.up().expect(0)
    pid = bystander.postmaster()
    chance = random.Random(6)
    for number in range(max(IN_CI, rounds)):
        task = chance.choice(["make", "make", "start", "stop"])
        if task == "make":
            place.run("stack-down", command="harness")
            for path in place.stack.glob("*"):
                if path.is_dir():
                    shutil.rmtree(path)
        elif task == "start":
            place.up().expect(0)
            place.run("stack-down", command="harness").expect(0)
        else:
            place.up().expect(0)
        victim = place.start(
            "stack-down" if task == "stop" else "stack-up", command="harness", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(chance.uniform(0, 2.0 if task == "make" else 0.7))
        victim.kill()
        victim.wait()
        place.up().expect(0)
        shown = f"round {number}: {task}"
        assert place.value("SELECT 1", "MC_DB_DSN") == 1, shown
        assert len(postmasters_below(place.root)) == 1, shown
        assert list(place.stack.glob("making-*")) == [], shown
        assert is_running(pid), shown
    assert bystander.value("SELECT 1") == 1
    assert innocent


def test_an_initdb_that_outlives_its_bootstrap_is_waited_for(place: Place) -> None:
    """It goes on writing when its bootstrap is killed: what it makes is swept when it has ended, not before."""
    victim = place.start("stack-up", command="harness", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not (making := initdb_below(place.stack)):
        assert time.monotonic() < deadline, "initdb was not seen at work"
    os.kill(making, signal.SIGSTOP)
    try:
        victim.kill()
        victim.wait()
        second = place.start("stack-up", command="harness", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(3)
        assert second.poll() is None, "it did not wait"
    finally:
        os.kill(making, signal.SIGCONT)
    assert second.wait(60) == 0
    assert list(place.stack.glob("making-*")) == []


def initdb_below(folder: Path) -> int:
    """Return the pid of an initdb at work on a data folder below `folder`; 0 when there is none."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if words[0].endswith(b"/initdb") and any(word.startswith(os.fsencode(folder)) for word in words):
                    return int(entry.name)
    return 0


def test_a_killed_server_is_started_again(place: Place) -> None:
    """SIGKILL of the server itself leaves a pid file; the next reset recovers what was committed."""
    place.up().expect(0)
    with place.connect("MC_DB_DSN") as connection:
        connection.execute("CREATE TABLE keep AS SELECT 42 AS v")
    time.sleep(1)  # commits reach the log within three rounds of its writer, by default 0.6 s
    pid = place.postmaster()
    os.kill(pid, signal.SIGKILL)
    wait_until_gone(pid)
    place.run("reset", command="harness").expect(0, "started")
    assert place.value("SELECT v FROM keep", "MC_DB_DSN") == 42


def test_a_recycled_pid_gets_no_signal(place: Place, innocent: int) -> None:
    """A pid file that outlived its server names somebody else's process: it is left alone, and the server starts."""
    place.up().expect(0)
    text = (place.data / "postmaster.pid").read_text()
    place.run("stack-down", command="harness").expect(0)
    stale = place.data / "postmaster.pid"
    stale.write_text(text.replace(text.split("\n")[0], str(innocent), 1))
    os.chown(stale, place.data.stat().st_uid, place.data.stat().st_gid)
    place.run("stack-down", command="harness").expect(0, "did not run")
    place.up().expect(0)
    assert place.value("SELECT 1") == 1
    place.run("stack-down", command="harness").expect(0, "is stopped")


@pytest.mark.parametrize("text", ["", "garbage\n", "\0\0\0"])
def test_a_torn_pid_file_is_named(place: Place, text: str) -> None:
    """Ours to name, not to remove: by it a server sees that another one's memory is still in use."""
    place.up().expect(0)
    place.run("stack-down", command="harness").expect(0)
    torn = place.data / "postmaster.pid"
    torn.write_text(text)
    os.chown(torn, place.data.stat().st_uid, place.data.stat().st_gid)
    place.run("reset", command="harness").expect(5, f"remove {str(torn)!r}, which is torn")
    torn.unlink()
    place.run("reset", command="harness").expect(0)


def test_a_server_without_a_readable_record_can_be_stopped(place: Place) -> None:
    """The lease knows it too; what is committed stays, and the way out is said."""
    place.up().expect(0)
    pid = place.postmaster()
    (place.data / "pgharness.json").write_text("{")
    place.run("reset", command="harness").expect(5, "pgharness.json cannot be read", "inv stack-down")
    place.run("stack-down", command="harness").expect(0, "is stopped")
    wait_until_gone(pid)
    assert (
        "shut down"
        in subprocess.run(
            ["/bin/sh", "-c", 'cat "$0"', str(place.stack / "log")], capture_output=True, text=True, check=True
        ).stdout.splitlines()[-1]
    )


def test_a_log_that_cannot_be_written_is_named(place: Place) -> None:
    """It, and not the server's program."""
    (place.stack / "log").mkdir(parents=True)
    place.up().expect(5, f"{place.stack / 'log'} cannot be written: Is a directory")


def test_a_path_with_a_line_break_is_refused(make_place: Callable[..., Place]) -> None:
    """No file of PostgreSQL's could hold it: the path is named, not what came of it."""
    make_place("two\nlines").up().expect(2, "'", "has a line break", "Move the worktree.")


def test_a_half_made_folder_is_swept(place: Place) -> None:
    """What a killed initdb left goes; a data folder that is not the harness's is never touched."""
    leftover = place.stack / "making-abc/data"
    leftover.mkdir(parents=True)
    (leftover / "PG_VERSION").write_text("15\n")
    place.up().expect(0)
    assert not leftover.parent.exists()
    place.run("stack-down", command="harness").expect(0)
    (place.data / "pgharness.json").unlink()
    place.up().expect(5, str(place.data), "Move it away")
    assert (place.data / "PG_VERSION").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs uid 0: to mount a small file system")
def test_no_space_for_the_data_folder(make_place: Callable[..., Place], ground: Path) -> None:
    """BOOT-06c: the reason is said as it is, and neither a process nor a half-made folder nor test/.env is left."""
    place = make_place("small", f'directory = "{ground}/disk"')
    (ground / "disk").mkdir()
    script = f'mount -t tmpfs -o size=20m,mode=755 tmpfs "{ground}/disk" && "$0" "$@"; code=$?; find "{ground}/disk" -name PG_VERSION; exit $code'
    argv = ["unshare", "--mount", "sh", "-c", script, *place.argv("stack-up", command="harness")]
    done = subprocess.run(argv, cwd=place.root, env=place.environment(), capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr}")
    assert done.returncode == 5, done.stderr
    assert "No space left on device" in done.stderr
    assert "PG_VERSION" not in done.stdout
    assert not (place.root / "test/.env").exists()
    assert postmasters_below(ground) == []


def test_another_version_loses_nothing(place: Place) -> None:
    """A data folder of another major version: what it is, what was asked for and how to go on."""
    place.up().expect(0)
    major = place.record["major"]
    place.run("stack-down", command="harness").expect(0)
    before = sorted(path.name for path in place.data.iterdir())
    place.settings((place.root / "harness.toml").read_text() + f"major = {major + 1}\n")
    place.up().expect(5, f"PostgreSQL {major}'s", f"asks for {major + 1}", "move the folder away")
    assert sorted(path.name for path in place.data.iterdir()) == before


def test_the_server_survives_its_terminal(place: Place) -> None:
    """It has a session of its own and none of our descriptors: whoever waits for our output's end does not wait for it."""
    began = time.monotonic()
    done = subprocess.run(
        [*place.argv("stack-up", command="harness")],
        cwd=place.root,
        env=place.environment(),
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    )
    assert b"started" in done.stdout
    assert time.monotonic() - began < 50
    pid = place.postmaster()
    assert os.getsid(pid) == pid
    targets = {str(Path(f"/proc/{pid}/fd/{number}").readlink()) for number in (0, 1, 2)}
    assert targets == {"/dev/null", str(place.stack / "log")}
