"""Time resets beside other tools' ways to the same databases: `python -m benchmarks`; results in benchmarks/results/."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import contest, figures, measure, peers
from benchmarks.sets import SETS
from tests.builders import ScratchCluster

RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Run the contest; return 1 when a figure was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sets", default=",".join(of.name for of in SETS))
    parser.add_argument("--tools", type=Path, help="where the peers are, or are to be installed; default: a temporary folder")
    parser.add_argument("--no-peers", action="store_true", help="time our own commands only")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if not os.access("/dev/shm", os.W_OK):  # noqa: S108  # only looked at
        say("there is no /dev/shm to write to: the clusters lie on a disk, and the figures are those of the disk")
    with tempfile.TemporaryDirectory() as temporary:
        tools = peers.Tools(None, None) if options.no_peers else peers.install((options.tools or Path(temporary)).resolve())
        document = run(options.sets.split(","), options.rounds, tools, with_peers=not options.no_peers)
    options.output.mkdir(parents=True, exist_ok=True)
    table = figures.table(document["milliseconds"], document["phases"])
    (options.output / "reset.json").write_text(json.dumps(document, indent=1) + "\n")
    (options.output / "reset.md").write_text(heading(document) + table)
    (options.output / "reset.svg").write_text(figures.plot(document["milliseconds"]))
    print(table)
    return int(not all(figure.holds for figure in figures.figures(document["milliseconds"])))


def run(sets: list[str], rounds: int, tools: peers.Tools, *, with_peers: bool) -> dict[str, Any]:
    """Return what was measured."""
    taken: dict[str, dict[str, list[float]]] = {}
    phases: dict[str, dict[str, dict[str, float]]] = {}
    version = ""
    for of in (of for of in SETS if of.name in sets):
        say(f"{of.name}: {of.files} files, {of.tables} tables")
        with ScratchCluster() as cluster, tempfile.TemporaryDirectory() as folder:
            version = str(cluster.value("SHOW server_version"))
            ours = contest.Ours(cluster, of, Path(folder))
            ours.repository.run("reset").expect(0)
            others = peers.prepare(tools, cluster, of, Path(folder)) if with_peers else []
            settle = partial(cluster.execute, "CHECKPOINT")
            taken[of.name] = measure.rounds(contest.contestants(ours, others), rounds, say, settle=settle, often=contest.OFTEN)
            phases[of.name] = {kind: _medians(found) for kind, found in ours.phases.items() if found}
    found = [{**figure.target._asdict(), "measured": figure.measured._asdict(), "holds": figure.holds} for figure in figures.figures(taken)]
    versions = {"python": platform.python_version(), "postgresql": version, **_versions(tools)}
    machine = {"cores": os.cpu_count(), "system": platform.system(), "load": os.getloadavg()[0]}
    return {"rounds": rounds, "machine": machine, "versions": versions, "figures": found, "phases": phases, "milliseconds": taken}


def _medians(found: list[dict[str, float]]) -> dict[str, float]:
    return {phase: round(statistics.median(one[phase] for one in found), 1) for phase in found[0]}


def _versions(tools: peers.Tools) -> dict[str, str]:
    found: dict[str, str] = {}
    if tools.python is not None:
        names = ["django", "alembic", "pytest", "pytest-postgresql", "psycopg"]
        code = f"import importlib.metadata as m, json; print(json.dumps({{name: m.version(name) for name in {names}}}))"
        found |= json.loads(subprocess.run([str(tools.python), "-c", code], capture_output=True, text=True, check=True).stdout)
    if tools.dbmate is not None:
        text = subprocess.run([str(tools.dbmate), "--version"], capture_output=True, text=True, check=True).stdout
        found["dbmate"] = text.split()[-1]
    return found


def heading(document: dict[str, Any]) -> str:
    """Return what the figures are of."""
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    machine = document["machine"]
    return (
        f"# Resets beside other tools' ways\n\n{document['rounds']} interleaved rounds on {machine['cores']} cores ({machine['system']}), the load "
        f"{machine['load']:.1f} at the end, the clusters in memory with fsync off,\na checkpoint "
        f"before each way; what takes no process of its own was timed three times a round. {versions}.\nMade by `python -m benchmarks`.\n\n"
    )


def say(line: str) -> None:
    """Tell how far it is."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
