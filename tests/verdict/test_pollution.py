"""Planted pollution: projects of 4 to 40 packages with known polluters; residue, bisect and --isolate find and cure every one."""

from __future__ import annotations

import math
import random
import time
from pathlib import Path

from tests.builders import SampleRepository, ScratchCluster
from tests.verdict.projects import KINDS, Project, failed, folder, residues

IN_CI = 4
SMALL = 9
"""Projects are this small in CI; many rounds have up to 40 packages."""
SHAPES = ((0, False), (1, False), (2, False), (2, True))


def check(project: Project) -> str:
    """Run the project in every way and return a line of figures."""
    started = time.monotonic()
    document = project.document("test", code=1 if project.planted else 0)
    left = residues(document)
    assert left.keys() == project.kinds.keys(), "residue names every polluter and no other package"
    for name, kind in project.kinds.items():
        assert KINDS[kind].residue in left[name]
    assert failed(document) == sorted(planted.victim for planted in project.planted)
    bounds = []
    for victim, polluters in project.planted:
        found = project.document("bisect", "--package", victim, code=0)
        earlier = project.names.index(victim)
        bound = len(polluters) * math.ceil(math.log2(earlier)) + 2 + len(polluters)
        assert (found["verdict"], tuple(found["polluters"])) == ("polluter" if len(polluters) == 1 else "pair", polluters)
        assert len(found["runs"]) <= bound
        assert [KINDS[project.kinds[one["package"]]].residue in one["residue"]["summary"] for one in found["residue"]] == [True] * len(
            polluters
        )
        bounds.append(f"{len(found['runs'])} of at most {bound} runs")
    isolated = project.document("test", "--isolate", code=0)
    assert failed(isolated) == []
    assert residues(isolated).keys() == project.kinds.keys()
    kinds = ", ".join(project.kinds.values()) or "none"
    together = " together" if any(len(planted.polluters) > 1 for planted in project.planted) else ""
    return f"{project.size} packages, polluters: {kinds}{together}; bisect: {'; '.join(bounds) or '-'}; {time.monotonic() - started:.0f} s"


def test_every_polluter_is_named_found_and_cured(scratch_cluster: ScratchCluster, tmp_path: Path, rounds: int) -> None:
    """Residue names every polluter, and none of the clean ones; bisect finds each within its bound; --isolate turns all green."""
    seen: set[str] = set()
    for number in range(max(IN_CI, rounds)):
        polluters, together = SHAPES[number % len(SHAPES)]
        size = random.Random(number).randint(4, 40 if rounds > IN_CI else SMALL)
        repository = SampleRepository(folder(tmp_path, number), scratch_cluster)
        project = Project(repository, number, size, polluters, together=together)
        print(f"project {number}: {check(project)}", flush=True)
        seen.update(project.kinds.values())
    if rounds > IN_CI:
        assert seen == set(KINDS)
