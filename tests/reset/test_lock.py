"""One run at a time per database: resets at once wait for each other, a holder is named, and a killed one leaves nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time

import pytest

from harness import lock
from harness.errors import ResetFailed
from harness.targets import name_beside
from tests.builders import SampleRepository, ScratchCluster, assert_fresh, untouched
from tests.reset.inside import Inside, leftovers, wait_for


def test_three_resets_at_once_all_succeed(reset_once: SampleRepository, scratch_cluster: ScratchCluster, rounds: int) -> None:
    """Round after round; a round in which the template is new, one in which it stands."""
    for number in range(max(rounds, 2)):
        if number % 2:
            reset_once.migration("0002_more.sql", f"CREATE TABLE more(); -- {number}")
        processes = [reset_once.start("reset") for _ in range(3)]
        for process in processes:
            stdout, stderr = process.communicate(timeout=60)
            assert process.returncode == 0, stdout + stderr
            assert stdout.count("is pristine") == 2
        assert leftovers(reset_once) == []
    assert_fresh(scratch_cluster, "shop_test", tables={"public.item", "public.more"})


def test_a_reset_during_a_run_waits_says_who_holds_it_and_ends_no_session_of_it(
    reset_once: SampleRepository, scratch_cluster: ScratchCluster
) -> None:
    """Both databases' holder is named by pid and worktree; when the wait is over, exit 4."""
    with Inside(reset_once).opened(), scratch_cluster.connect("dev", "shop_test"), untouched(scratch_cluster, "shop_test", "shop_e2e"):
        holder = f"pid {os.getpid()} of worktree"
        reset_once.run("reset", "--wait", "0.3").expect(4, holder, "the shop", "waiting up to")
        reset_once.run("reset", "--no-wait").expect(4, holder)
        reset_once.run("reset", "--no-wait", "--database", "e2e").expect(4, holder)
    reset_once.run("reset", "--no-wait").expect(0)


def test_a_run_names_itself_whole_during_every_package(reset_once: SampleRepository) -> None:
    """Looking at what a package left asks the server other things: the next one's mark is the whole path again, too long for a session's name."""
    settings = (reset_once.root / "harness.toml").read_text()
    reset_once.settings(settings.replace('test = ["tests/orders"]', 'test = ["tests/orders", "tests/second"]'))
    reset_once.package(
        "tests/second",
        "import pathlib, time\ndef test_it():\n    pathlib.Path('begun').touch()\n    while not pathlib.Path('goes').exists(): time.sleep(0.01)\n",
    )
    process = reset_once.start("test")
    begun, deadline = reset_once.root / "begun", time.monotonic() + 30
    while not begun.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    reset_once.run("reset", "--no-wait").expect(4, f"of worktree {str(reset_once.root)!r} since")
    (reset_once.root / "goes").touch()
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 0, stdout + stderr


def test_a_waiting_reset_goes_on_when_the_holder_has_ended(reset_once: SampleRepository) -> None:
    """It takes the lock and is pristine."""
    with Inside(reset_once).opened():
        process = reset_once.start("reset", bufsize=1)
        assert process.stdout is not None
        assert "waiting up to 600 s" in process.stdout.readline()
    stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout.count("is pristine")) == (0, 2), stderr


def test_a_killed_holder_leaves_no_lock(reset_once: SampleRepository, scratch_cluster: ScratchCluster) -> None:
    """Its statement in the server is waited for, its sessions on half-made databases are ended."""
    reset_once.migration("0002_slow.sql", "CREATE TABLE slow(); SELECT pg_sleep(30);")
    process = reset_once.start("reset", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while scratch_cluster.value("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(30)%' AND state = 'active'") < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    reset_once.migration("0002_slow.sql", "CREATE TABLE slow();")
    started = time.monotonic()
    reset_once.run("reset").expect(0)
    assert time.monotonic() - started < 15
    assert_fresh(scratch_cluster, "shop_test", tables={"public.item", "public.slow"})
    assert leftovers(reset_once) == []
    assert scratch_cluster.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0


def test_the_session_of_a_killed_reset_is_waited_for(
    reset_once: SampleRepository, scratch_cluster: ScratchCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is still at work in the server could make, or drop, what the next reset makes; its wait is bounded."""
    with scratch_cluster.connect("dev") as orphan:
        orphan.execute(f"SELECT pg_advisory_lock({lock.worker_key('shop_e2e')})")
        pid = orphan.info.backend_pid
        monkeypatch.setattr(lock, "ORPHAN_WAIT", 0.3)
        with pytest.raises(ResetFailed, match=re.escape(f"a killed reset's session (pid {pid}) is still at work")):
            Inside(reset_once).reset()
    monkeypatch.undo()
    Inside(reset_once).reset()


def test_what_the_session_of_a_killed_reset_still_makes_is_seen_and_swept(
    reset_once: SampleRepository, scratch_cluster: ScratchCluster
) -> None:
    """It finishes its statement at any moment before the next reset begins to build."""
    for number in range(10):
        with scratch_cluster.connect("dev") as orphan:
            orphan.execute(f"SELECT pg_advisory_lock({lock.worker_key('shop_e2e')})")
            process = reset_once.start("reset", "--fresh")
            wait_for(scratch_cluster, "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name LIKE 'harness run %'")
            time.sleep(number / 50)
            orphan.execute(f'CREATE DATABASE "{name_beside("new", "shop_e2e")}"')
        stdout, stderr = process.communicate(timeout=60)
        assert (process.returncode, stdout.count("is pristine")) == (0, 2), stderr
        assert leftovers(reset_once) == []
