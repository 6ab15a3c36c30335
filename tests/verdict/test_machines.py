"""The recipe for several machines, tried with worktrees: each makes its own cluster and runs its shard, all at once."""

from __future__ import annotations

import contextlib
import json

import pytest

from tests.specification.mission import Mission, mission_in, scratch_folder

MACHINES = 3


@pytest.mark.postgres
def test_three_worktrees_run_one_suite() -> None:
    """Three clusters, three shards at once, one merged result: every package once, all fine."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(mission_in(stack.enter_context(scratch_folder())))
        machines = [first]
        first.git("init", "-q", "-b", "main")
        first.git("add", "-A")
        first.git("commit", "-q", "-m", "Begin")
        for number in range(2, MACHINES + 1):
            root = first.folder / f"machine {number}"
            first.git("worktree", "add", "-q", "--detach", str(root))
            machine = Mission(root, first.folder, first.state)
            stack.callback(machine.down)
            machine.up()
            machines.append(machine)
        assert len({machine.record["port"] for machine in machines}) == MACHINES
        files = [str(first.folder / f"part-{number}.json") for number in range(1, MACHINES + 1)]
        running = [
            stack.enter_context(machine.started("test", "--e2e", "--shard", f"{number}/{MACHINES}", "--json", files[number - 1]))
            for number, machine in enumerate(machines, 1)
        ]
        for machine, process in zip(machines, running, strict=True):
            machine.finished(process)
        merged = first.document("report-merge", *files)
        listed = first.document("test", "--e2e", "--shard", "1/1")
        assert sorted(package["package"] for package in merged["packages"]) == sorted(package["package"] for package in listed["packages"])
        assert [package["package"] for package in merged["packages"] if not package["fine"]] == []
        assert all(json.loads((first.folder / f"part-{number}.json").read_text())["packages"] for number in range(1, MACHINES + 1))
