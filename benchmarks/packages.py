"""What residue and --isolate add to a run: `python -m benchmarks.packages`. Medians of interleaved rounds."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path

from tests.builders import SampleRepository, ScratchCluster
from tests.specification.mission import mission_in, scratch_folder

ROUNDS, PACKAGES = 15, 6
SLEEPING = """\
[databases]
application = "shop"
test = "shop_test"

[[migrations]]
stream = "core"
directory = "migrations/core"

[packages]
test = [{packages}]
"""


def suite() -> float:
    """Print what looking at residue adds to the sample suite, in percent, and return it."""
    seconds: dict[str, list[float]] = {"off": [], "warn": []}
    with scratch_folder() as folder, mission_in(folder) as mission:
        settings = (mission.root / "harness.toml").read_text()
        for _ in range(ROUNDS):
            for policy, found in seconds.items():
                mission.settings(settings.replace('residue = "off"', f'residue = "{policy}"'))
                found.append(float(mission.document("test", "--e2e")["seconds"]))
    off, warn = (statistics.median(found) for found in seconds.values())
    added = statistics.median(two - one for one, two in zip(*seconds.values(), strict=True))
    print(f"the sample suite without residue {off:.2f} s, with it {warn:.2f} s: {100 * added / off:+.1f} %, at most 5", flush=True)
    return float(100 * added / off)


def isolation() -> float:
    """Print what --isolate adds to each package of half a second, as a part of a plain reset, and return it."""
    seconds: dict[str, list[float]] = {"plain": [], "isolated": []}
    resets = []
    with ScratchCluster() as cluster, tempfile.TemporaryDirectory() as folder:
        repository = SampleRepository(Path(folder) / "shop", cluster)
        names = [f"tests/p{number}" for number in range(PACKAGES)]
        for name in names:
            repository.write(f"{name}/run.sh", "sleep 0.5\n")
        packages = ", ".join(f"{{ path = '{name}', command = ['sh', 'run.sh'] }}" for name in names)
        repository.settings(SLEEPING.format(packages=packages))
        document = repository.root / "document.json"
        for _ in range(ROUNDS):
            for kind, found in seconds.items():
                flags = ["--isolate"] if kind == "isolated" else []
                repository.run("test", *flags, "--json", str(document)).expect(0)
                run = json.loads(document.read_text())
                first, last = run["packages"][0], run["packages"][-1]
                found.append(last["started"] + last["seconds"] - first["started"])
                if not flags:
                    repository.run("reset", "--json", str(document)).expect(0)
                    resets.append(json.loads(document.read_text())["databases"][0]["ms"])
    added = 1000 * statistics.median(two - one for one, two in zip(*seconds.values(), strict=True)) / (PACKAGES - 1)
    reset = statistics.median(resets)
    print(
        f"--isolate adds {added:.1f} ms to a package of half a second; a plain reset takes {reset:.0f} ms: {added / reset:.2f} of it, at most 0.25"
    )
    return float(added / reset)


if __name__ == "__main__":
    late = [suite() > 5, isolation() > 0.25]  # noqa: PLR2004  # the bounds that are printed
    sys.exit(int(any(late)))
