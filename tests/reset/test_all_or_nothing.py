"""A reset is all or nothing: killed, interrupted, failing, out of room, or with its server gone, the next one succeeds."""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from harness import obstacles, templates
from harness.errors import ResetFailed
from tests.builders import SampleRepository, ScratchCluster, Sentinel, assert_fresh, untouched
from tests.reset import inside as within
from tests.reset.inside import Inside, leftovers, state, wait_for

KILLS = 30
"""At random moments in an ordinary run; more by --rounds."""
WATCHER = """
import sys, psycopg
dsn, *names = sys.argv[1:]
allowed = dict.fromkeys(names)
polls = 0
with psycopg.connect(dsn, autocommit=True) as connection:
    print("watching", flush=True)
    while True:
        rows = connection.execute(
            "SELECT datname::text, oid::int8, datallowconn, datconnlimit, shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = ANY(%s)",
            [names]).fetchall()
        polls += 1
        if sorted(row[0] for row in rows) != sorted(names):
            print("absent", rows, flush=True)
        for name, oid, is_open, limit, comment in rows:
            complete = is_open and limit == -1 and comment and '"fingerprint": "' in comment and '"fingerprint": ""' not in comment
            if oid != allowed[name] and not complete:
                print("half-made", name, oid, is_open, limit, comment, flush=True)
            allowed[name] = oid
        if polls % 100 == 0:
            print(polls, flush=True)
"""


class Watcher:
    """Polls pg_database from a process of its own: under the names stands only the old database or a complete new one."""

    def __init__(self, cluster: ScratchCluster, *names: str) -> None:
        argv = [sys.executable, "-c", WATCHER, cluster.dsn("su"), *names]
        self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.polls, self.seen = 0, list[str]()
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "watching\n"
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip().isdigit():
                self.polls = int(line)
            else:
                self.seen.append(line)

    def __enter__(self) -> Watcher:  # noqa: PYI034  # Self came with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


def kill_at(repository: SampleRepository, delay: float, *arguments: str, by: int = signal.SIGKILL) -> int:
    """Start a reset and send its group a signal after `delay` seconds; return its exit code."""
    process = repository.start("reset", *arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(delay)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, by)
        return process.wait(30)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def duration(repository: SampleRepository, *arguments: str) -> float:
    """Return how long a whole reset command takes."""
    started = time.monotonic()
    repository.run("reset", *arguments).expect(0)
    return time.monotonic() - started


def test_killed_at_a_random_moment_nothing_is_half_made_and_the_next_reset_succeeds(
    reset_once: SampleRepository, scratch_cluster: ScratchCluster, rounds: int
) -> None:
    """No manual step, no rubble, and a watcher that polls all the while sees no half."""
    reset_once.migration("0002_more.sql", "CREATE TABLE more AS SELECT generate_series(1, 2000) i; CREATE INDEX ON more (i);")
    tables = {"public.item", "public.more"}
    luck, polls = random.Random(4711), 10_000
    kills = max(KILLS, rounds)
    longest = {arguments: duration(reset_once, *arguments) for arguments in (("--fresh",), ())}
    with Watcher(scratch_cluster, "shop_test", "shop_e2e") as watcher:
        for number in range(kills):
            arguments = ("--fresh",) if number % 3 == 0 else ()
            if number % 3 == 1:
                reset_once.migration("0003_new.sql", f"SELECT {number};")
            kill_at(reset_once, luck.uniform(0.4, 1.1) * longest[arguments], *arguments)
            # The next reset: the locks of the dead one go when the server notices, and its sessions are waited for.
            Inside(reset_once).reset(wait=20)
            assert leftovers(reset_once) == [], f"kill {number}"
            for name in ("shop_test", "shop_e2e"):
                assert_fresh(scratch_cluster, name, tables=tables)
        deadline = time.monotonic() + 60
        while watcher.polls < polls and time.monotonic() < deadline:
            Inside(reset_once).reset()
        assert watcher.seen == []
        assert watcher.polls >= polls
    assert len(within.templates(reset_once)) <= 2 * templates.KEPT


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_ends_a_reset_in_order(reset_once: SampleRepository, scratch_cluster: ScratchCluster, name: str) -> None:
    """A migration at work is ended in the server, the half-made databases go, and the exit code tells the signal."""
    reset_once.migration("0002_slow.sql", "CREATE TABLE slow(); SELECT pg_sleep(60);")
    with untouched(scratch_cluster, "shop_test", "shop_e2e"):
        process = reset_once.start("reset")
        wait_for(
            scratch_cluster,
            "SELECT count(*) = 2 FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND state = 'active' AND pid <> pg_backend_pid()",
        )
        started = time.monotonic()
        os.killpg(process.pid, getattr(signal, name))
        _, stderr = process.communicate(timeout=30)
        assert process.returncode == 128 + getattr(signal, name)
        assert time.monotonic() - started < 10
        assert f"interrupted by {name}" in stderr
        assert "Traceback" not in stderr
        assert leftovers(reset_once) == []
    assert scratch_cluster.value("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'harness%'") == 0


def test_a_failing_migration_leaves_the_previous_databases_as_they_were(
    reset_once: SampleRepository, scratch_cluster: ScratchCluster
) -> None:
    """Open, with their sessions alive; nothing half-made stays and no template is published."""
    before = state(reset_once)
    reset_once.migration("0002_bad.sql", "CREATE TABLE half();\nSELECT 1/0;\n")
    with scratch_cluster.connect("dev", "shop_test"), untouched(scratch_cluster, "shop_test", "shop_e2e"):
        for arguments in ((), ("--fresh",)):
            reset_once.run("reset", *arguments).expect(4, "0002_bad.sql:2", "division by zero", "22012")
    assert state(reset_once) == before


SWAPPING = ("after the old ones were closed", "before the swap")
"""These come first only where the template stands and somebody is connected."""
STEPS: dict[str, Callable[[], tuple[Any, str]]] = {
    "after the old ones were closed": lambda: (obstacles, "quiet"),
    "before the swap": lambda: (obstacles, "persistently"),
    "in the drop of the old ones": lambda: (obstacles, "drop_closed"),
    "while a template is published": lambda: (templates, "publish"),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_an_exception_at_any_step_leaves_either_the_old_or_the_new(
    reset_once: SampleRepository, scratch_cluster: ScratchCluster, monkeypatch: pytest.MonkeyPatch, step: str, failure: type[BaseException]
) -> None:
    """And for both databases the same."""
    reset_once.migration("0002_more.sql", "CREATE TABLE more();")
    inside = Inside(reset_once)
    if step in SWAPPING:
        inside.reset()
    before = state(reset_once)
    module, name = STEPS[step]()
    original, open_then = getattr(module, name), list[bool]()

    def broken(*arguments: Any, **named: Any) -> Any:
        open_then.append(scratch_cluster.value("SELECT bool_or(datallowconn) FROM pg_database WHERE datname IN ('shop_test', 'shop_e2e')"))
        if len(open_then) == 1:
            raise failure(step)
        return original(*arguments, **named)

    monkeypatch.setattr(module, name, broken)
    with scratch_cluster.connect("dev", "shop_test"), pytest.raises(failure, match=step):
        inside.reset()
    after = state(reset_once)
    assert open_then[0] == (step not in SWAPPING)
    if "drop" in step:
        assert all(after[name] != before[name] for name in ("shop_test", "shop_e2e"))
        assert_fresh(scratch_cluster, "shop_test", tables={"public.item", "public.more"})
    else:
        assert all(after[name] == before[name] for name in ("shop_test", "shop_e2e"))
        assert leftovers(reset_once) == []
    inside.reset()
    assert leftovers(reset_once) == []


def test_a_database_that_was_replaced_meanwhile_is_not_dropped(
    reset_once: SampleRepository, scratch_cluster: ScratchCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the guard proved is what is closed and dropped: by oid, not by name."""
    clone = templates.clone

    def sly(connection: Any, recipe: Any) -> None:
        clone(connection, recipe)
        if recipe.target.role == "test":
            scratch_cluster.execute("ALTER DATABASE shop_test RENAME TO elsewhere")
            scratch_cluster.create_database("shop_test", "dev")

    monkeypatch.setattr(templates, "clone", sly)
    with pytest.raises(ResetFailed, match="'shop_test' was replaced by another one meanwhile"):
        Inside(reset_once).reset()
    assert {"shop_test", "elsewhere", "shop_e2e"} < set(state(reset_once))
    assert leftovers(reset_once) == []


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_restarted_in_the_middle_is_exit_4_and_the_next_reset_succeeds(
    sample_repository: SampleRepository, scratch_cluster: ScratchCluster, mode: str
) -> None:
    """Whatever the crash left is swept."""
    Inside(sample_repository).reset()
    sample_repository.migration("0002_slow.sql", "CREATE TABLE slow(); SELECT pg_sleep(60);")
    process = sample_repository.start("reset")
    wait_for(
        scratch_cluster,
        "SELECT count(*) = 2 FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND state = 'active' AND pid <> pg_backend_pid()",
    )
    scratch_cluster.stop(mode)
    scratch_cluster.start()
    _, stderr = process.communicate(timeout=30)
    assert (process.returncode, "Traceback" in stderr) == (4, False), stderr
    sample_repository.migration("0002_slow.sql", "CREATE TABLE slow();")
    sample_repository.run("reset").expect(0)
    assert_fresh(scratch_cluster, "shop_test", tables={"public.item", "public.slow"})
    assert leftovers(sample_repository) == []


def test_sessions_of_ours_that_are_ended_in_the_middle_are_exit_4(reset_once: SampleRepository, scratch_cluster: ScratchCluster) -> None:
    """An administrator's hand is no bug of ours."""
    reset_once.migration("0002_slow.sql", "SELECT pg_sleep(60);")
    process = reset_once.start("reset")
    wait_for(
        scratch_cluster,
        "SELECT count(*) = 2 FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND state = 'active' AND pid <> pg_backend_pid()",
    )
    scratch_cluster.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'harness%'")
    _, stderr = process.communicate(timeout=30)
    assert (process.returncode, "Traceback" in stderr) == (4, False), stderr
    reset_once.migration("0002_slow.sql", "SELECT 1;")
    reset_once.run("reset").expect(0)
    assert leftovers(reset_once) == []


def test_hostile_settings_of_the_role_do_not_reach_our_sessions_but_stay_for_the_tests(
    reset_once: SampleRepository, scratch_cluster: ScratchCluster
) -> None:
    """Time-outs of milliseconds, read-only by default, a search_path without pg_catalog first, and libpq's own variables."""
    hostile = {
        "statement_timeout": "50ms",
        "lock_timeout": "50ms",
        "idle_in_transaction_session_timeout": "200ms",
        "idle_session_timeout": "300ms",
        "default_transaction_read_only": "on",
        "default_transaction_isolation": "serializable",
        "lc_messages": "C",
        "standard_conforming_strings": "off",
        "client_encoding": "LATIN1",
        "DateStyle": "German",
        "bytea_output": "escape",
        "quote_all_identifiers": "on",
        "row_security": "off",
        "synchronous_commit": "remote_apply",
    }
    for key, value in hostile.items():
        scratch_cluster.execute(f"ALTER ROLE dev SET {key} TO '{value}'")
    reset_once.migration("0002_slow.sql", "SELECT pg_sleep(0.6); CREATE TABLE \"Größe\" (v text DEFAULT 'a''b');")
    shell: dict[str, str | None] = {"PGOPTIONS": "-c default_transaction_read_only=on", "PGDATABASE": "shop", "PGAPPNAME": "x"}
    for arguments in ((), (), ("--fresh",)):
        reset_once.run("reset", *arguments, env=shell).expect(0)
    assert_fresh(scratch_cluster, "shop_test", tables={"public.item", "public.Größe"})
    for key in ("statement_timeout", "default_transaction_read_only"):
        assert scratch_cluster.value(f"SHOW {key}", role="dev", database="shop_test") == hostile[key]


@contextmanager
def small_room() -> Iterator[Path]:
    """Mount a small tmpfs; skips aloud where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    folder = Path("/mnt") if os.access("/mnt", os.W_OK) else None
    if sys.platform != "linux" or os.geteuid() != 0 or folder is None:
        pytest.skip("a disk that can be filled takes root on Linux: `mount` is not allowed here")
    place = folder / f"harness-full-{os.getpid()}"
    place.mkdir()
    try:
        if libc.mount(b"tmpfs", str(place).encode(), b"tmpfs", 0, b"size=240m,mode=711"):
            pytest.skip(f"a disk that can be filled takes the right to mount: {os.strerror(ctypes.get_errno())}")
        try:
            yield place
        finally:
            for _ in range(100):
                if not libc.umount2(str(place).encode(), 0):
                    break
                time.sleep(0.05)
    finally:
        place.rmdir()


def test_a_full_disk_is_exit_4_and_once_there_is_room_the_next_reset_succeeds(tmp_path: Path) -> None:
    """In a clone, and in a migration: the previous databases stay, nothing half-made does."""
    with small_room() as room, ScratchCluster(place=room, max_wal_size="32MB", min_wal_size="32MB", shared_buffers="4MB") as cluster:
        assert room in cluster.data.parents
        repository = SampleRepository(tmp_path / "shop", cluster)
        repository.run("reset").expect(0)
        with Sentinel(cluster):
            ballast = room / "ballast"
            before = state(repository)
            fill(ballast, room, leave=9_000_000)
            with untouched(cluster, "shop_test", "shop_e2e"):
                repository.run("reset").expect(4, "No space left on device", "53100")
            assert state(repository) == before
            repository.migration("0002_big.sql", "CREATE TABLE big AS SELECT repeat(md5(i::text), 30) t FROM generate_series(1, 60000) i;")
            ballast.unlink()
            fill(ballast, room, leave=35_000_000)
            with untouched(cluster, "shop_test", "shop_e2e"):
                repository.run("reset").expect(4, "53100")
            assert leftovers(repository) == []
            ballast.unlink()
            repository.migration("0002_big.sql", "CREATE TABLE big();")
            repository.run("reset").expect(0)
            assert_fresh(cluster, "shop_test", tables={"public.item", "public.big"})
            assert leftovers(repository) == []


def fill(path: Path, room: Path, *, leave: int) -> None:
    """Fill the file system of `room` until `leave` bytes are free."""
    found = os.statvfs(room)
    path.write_bytes(bytes(max(0, found.f_bavail * found.f_frsize - leave)))


def test_the_json_document_tells_a_failure(reset_once: SampleRepository) -> None:
    """Code, message and next step, on stdout alone."""
    reset_once.migration("0002_bad.sql", "SELECT 1/0;\n")
    done = reset_once.run("reset", "--json", "-").expect(4)
    document = json.loads(done.stdout)
    assert document["exit"] == document["error"]["code"] == 4
    assert "division by zero" in document["error"]["message"]
    assert document["error"]["next"]
