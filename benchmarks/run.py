"""What a run costs beside pytest alone, in paired rounds: `python -m benchmarks.run [ROUNDS]`. The environment's plugins, autoloaded.

In an environment of invoke, psycopg, python-dotenv, tomli and pytest alone the first row is that of pytest alone.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from benchmarks.stack import ground
from tests.builders import SampleRepository, ScratchCluster

ONE = "import psycopg\ndef test_it(): pass\n"
HUNDRED = "import psycopg, pytest, time\n@pytest.mark.parametrize('n', range(100))\ndef test_it(n): time.sleep(0.005)\n"
PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": None, "PYTHONDONTWRITEBYTECODE": None}
MANY = 30
PEERS, LIMIT = (" and its plugins", 0.30) if find_spec("pytest_cov") else ("", 0.45)


class Measured:
    """A repository of packages, run in several ways."""

    def __init__(self, base: Path, cluster: ScratchCluster) -> None:
        self.repository = SampleRepository(base / "shop", cluster)
        self.repository.package("tests/checkout", ONE)

    def settings(self, packages: int, source: str, *, fork: bool = True, residue: str = "off") -> list[str]:
        """Write packages and harness.toml; return the packages' paths."""
        paths = [f"tests/p{number:03d}" for number in range(packages)]
        for path in paths:
            self.repository.package(path, source)
        listed = ", ".join(f'"{path}"' for path in paths)
        self.repository.settings(
            '[databases]\napplication = "shop"\ntest = "shop_test"\ne2e = "shop_e2e"\n'
            '[[migrations]]\nstream = "core"\ndirectory = "migrations/core"\n'
            f'[packages]\ntest = [{listed}]\ne2e = ["tests/checkout"]\n[run]\nfork = {str(fork).lower()}\nresidue = "{residue}"\n'
        )
        return paths

    def timed(self, argv: list[str]) -> float:
        """Return the seconds of a command that must succeed."""
        with tempfile.TemporaryFile() as output:
            began = time.perf_counter()
            subprocess.run(
                argv, cwd=self.repository.root, env=self.repository.environment(PLUGINS), check=True, stdout=output, stderr=output
            )
            return time.perf_counter() - began

    def ours(self, packages: int, source: str, *arguments: str, fork: bool = True, residue: str = "off") -> float:
        """Time `inv test`."""
        self.settings(packages, source, fork=fork, residue=residue)
        return self.timed(self.repository.argv("test", *arguments))

    def loop(self, packages: int, source: str) -> float:
        """Time a shell loop of `python -m pytest`, without any reset."""
        paths = self.settings(packages, source)
        return self.timed(["/bin/sh", "-c", f"for p in {' '.join(paths)}; do {sys.executable} -m pytest $p || exit 1; done"])

    def once(self, packages: int, source: str) -> float:
        """Time one pytest over all."""
        return self.timed([sys.executable, "-m", "pytest", "--import-mode=importlib", *self.settings(packages, source)])

    def further(self, residue: str) -> float:
        """Time one package more."""
        return (self.ours(MANY, ONE, residue=residue) - self.ours(10, ONE, residue=residue)) / (MANY - 10)

    def bare(self) -> float:
        """Time an interpreter that imports pytest."""
        return statistics.median(self.timed([sys.executable, "-c", "import pytest"]) for _ in range(3))


def main() -> None:
    """Print a line per figure: medians, and the median of the pairs' ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=15)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    chosen = parser.parse_args()
    with ground() as base, ScratchCluster() as cluster:
        it = Measured(base, cluster)
        rows: list[tuple[str, float, Callable[[], float], Callable[[], float]]] = [
            (
                f"10 packages, two databases reset : a loop of pytest{PEERS}",
                LIMIT,
                lambda: it.ours(9, ONE, "--e2e"),
                lambda: it.loop(10, ONE),
            ),
            ("a further package : import pytest", 0.45, lambda: it.further("off"), it.bare),
            ("the same with residue on", 0.45, lambda: it.further("warn"), it.bare),
            ("2,000 tests in 20 packages : one pytest", 1.12, lambda: it.ours(20, HUNDRED), lambda: it.once(20, HUNDRED)),
            ("10 packages : with fork = false", 0.50, lambda: it.ours(10, ONE), lambda: it.ours(10, ONE, fork=False)),
        ]
        rows = [row for row in rows if chosen.only in row[0]]
        found: list[list[tuple[float, float]]] = [[] for _ in rows]
        for _ in range(chosen.rounds):
            for pairs, (_, _, ours, other) in zip(found, rows, strict=True):
                pairs.append((ours(), other()))
        for pairs, (name, limit, _, _) in zip(found, rows, strict=True):
            ratio = statistics.median(ours / other for ours, other in pairs)
            medians = [statistics.median(column) * 1000 for column in zip(*pairs, strict=True)]
            print(f"{name}: {medians[0]:.0f} ms, {medians[1]:.0f} ms, ratio {ratio:.2f} (limit {limit})", flush=True)


if __name__ == "__main__":
    main()
