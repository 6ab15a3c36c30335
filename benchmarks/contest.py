"""Our commands and a reset in a warm process, beside the peers', on one cluster in memory."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.measure import Contestant
from benchmarks.sets import MigrationSet
from harness import session, settings
from tests.builders import SampleRepository, ScratchCluster

OFTEN = {"a reset in a warm process": 3, "bare clones and drops": 3}
"""How many times a round what takes no process of its own is timed: a clone's time wanders, and it costs little."""
NOTHING = "from invoke.tasks import task\n@task\ndef nothing(_context):\n    pass\n"


class Ours:
    """A repository of a migration set, and the phases of its resets."""

    def __init__(self, cluster: ScratchCluster, of: MigrationSet, folder: Path) -> None:
        self.cluster = cluster
        self.repository = SampleRepository(folder / "ours", cluster)
        self.repository.migration("0001_base.sql", "").unlink()
        for name, sql in of.sql().items():
            self.repository.migration(name, sql)
        self.repository.write("tasks.py", "from harness.tasks import *\n" + NOTHING)
        self.empty = SampleRepository(folder / "empty")
        self.empty.write("tasks.py", NOTHING)
        self.phases: dict[str, list[dict[str, float]]] = {"warm": [], "cold": []}

    def warm_process(self) -> float:
        """Time a reset of both databases in this process: settings, files, guard, locks and all."""
        began = time.perf_counter()
        found = settings.load(self.repository.root)
        with session.opened(found, {}, roles=found.test_roles, wait=0, say=lambda _: None) as run:
            done = session.make_pristine(run, fresh=False, say=lambda _: None)
        took = (time.perf_counter() - began) * 1000
        if any(one.source != "template" for one in done):
            raise SystemExit("the templates do not hold any more: was the harness's own code changed meanwhile?")
        self.phases["warm"].append(done[0].phases)
        return took

    def bare(self) -> float:
        """Time what any such reset needs: two connections, a clone and a drop on each."""
        import psycopg

        templates = [name for name in self.cluster.databases() if name.startswith("harness_tpl_")][:2]
        dsn = self.cluster.dsn("dev")
        strategy = " STRATEGY file_copy" if self.cluster.value("SHOW server_version_num") >= "150000" else ""
        began = time.perf_counter()
        connections = [psycopg.connect(dsn, autocommit=True) for _ in range(2)]
        for text in (f"CREATE DATABASE bare_{{}} TEMPLATE {{}}{strategy}", "DROP DATABASE bare_{}"):
            threads = [
                threading.Thread(target=_execute, args=[connection, text.format(number, template)])
                for number, (connection, template) in enumerate(zip(connections, templates, strict=True))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for connection in connections:
            connection.close()
        return (time.perf_counter() - began) * 1000


def _execute(connection: Any, text: str) -> None:
    connection.execute(text)


def timed(commands: tuple[tuple[str, ...], ...], folder: Path, env: dict[str, str]) -> Contestant:
    """Return what runs the commands one after another and returns the milliseconds."""

    def run() -> float:
        began = time.perf_counter()
        for argv in commands:
            done = subprocess.run(argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False)
            if done.returncode:
                raise SystemExit(f"{argv} exited {done.returncode} in {folder}\n{done.stdout.decode()}\n{done.stderr.decode()}")
        return (time.perf_counter() - began) * 1000

    return run


def contestants(ours: Ours, others: list[peers.Peer]) -> dict[str, Contestant]:
    """Return everything that is timed for one migration set, by name."""
    env = ours.repository.environment()
    root, nothing = ours.repository.root, ours.repository.argv("nothing")
    found: dict[str, Callable[[], float]] = {
        "import invoke, psycopg": timed(((sys.executable, "-c", "import invoke, psycopg"),), root, env),
        "inv, an empty task": timed((tuple(nothing),), ours.empty.root, env),
        "inv with our tasks, doing nothing": timed((tuple(nothing),), root, env),
        "inv reset": timed((tuple(ours.repository.argv("reset")),), root, env),
        "inv reset --fresh": timed((tuple(ours.repository.argv("reset", "--fresh")),), root, env),
        "a reset in a warm process": ours.warm_process,
        "bare clones and drops": ours.bare,
    }
    for peer in others:
        found[peer.name] = timed(peer.commands, peer.folder, env)
    return found
