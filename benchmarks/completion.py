"""What a TAB costs beside an empty `inv`, in paired rounds: `python -m benchmarks.completion [ROUNDS]`; 1 when over its bound."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INV = Path(sys.executable).parent / "inv"
EMPTY = "from invoke.tasks import task\n\n\n@task\ndef nothing(_context):\n    pass\n"
BOUND = 1.5


def timed(arguments: list[str], folder: Path) -> float:
    """Return the milliseconds of an `inv` that must succeed."""
    began = time.perf_counter()
    subprocess.run([str(INV), *arguments], cwd=folder, check=True, capture_output=True)
    return (time.perf_counter() - began) * 1000


def main() -> int:
    """Print a line per kind of completion."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    late = 0
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tasks.py").write_text(EMPTY)
        for name, line in (("a task", "inv sta"), ("a flag", "inv test --")):
            pairs = [(timed(["nothing"], Path(folder)), timed(["--complete", "--", line], ROOT)) for _ in range(rounds)]
            empty, ours = (statistics.median(found) for found in zip(*pairs, strict=True))
            ratio = statistics.median(ours / empty for empty, ours in pairs)
            late += ratio > BOUND
            print(f"completing {name}: {ours:.0f} ms, an empty inv {empty:.0f} ms, ratio {ratio:.2f}, at most {BOUND}", flush=True)
    return int(bool(late))


if __name__ == "__main__":
    sys.exit(main())
