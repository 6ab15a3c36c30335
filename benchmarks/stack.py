"""What a worktree's cluster costs, in paired rounds: `python -m benchmarks.stack [ROUNDS]`, and `--idle` for five quiet minutes.

From nothing against `initdb --no-sync`, a direct start and `import psycopg`; in place against `import invoke, psycopg`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import servers

PORTS = (18950, 18999)
SETTLED, WATCHED = 300, 60


@contextmanager
def ground() -> Iterator[Path]:
    """Make a folder on memory where there is some."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  # made with mkdtemp
    with tempfile.TemporaryDirectory(dir=memory) as name:
        Path(name).chmod(0o755)
        yield Path(name)


def timed(argv: list[str], cwd: Path) -> float:
    """Run a command with an environment of its own; return its seconds."""
    env = {"PATH": os.environ["PATH"], "HOME": str(cwd), "HARNESS_STATE_DIR": str(cwd.parent / "state")}
    began = time.perf_counter()
    subprocess.run(argv, cwd=cwd, env=env, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def floor(folder: Path) -> float:
    """Make and start a cluster with nothing around it."""
    server = servers.find("auto", None)
    folder.mkdir()
    account = servers.choose_account(folder, folder, server)
    if account.user is not None:
        os.chown(folder, account.user, -1)
    who = {} if account.user is None else {"user": account.user, "group": account.group, "extra_groups": ()}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **who}
    began = time.perf_counter()
    data = folder / "data"
    subprocess.run([*account.prefix, str(server.programs / "initdb"), "-D", str(data), "--no-sync", "-A", "trust"], check=True, **quiet)  # type: ignore[call-overload]  # subprocess's own keywords
    options = ["-c", f"port={PORTS[1]}", "-c", "unix_socket_directories=", "-c", "fsync=off"]
    process: subprocess.Popen[bytes] = subprocess.Popen(
        [*account.prefix, str(server.programs / "postgres"), "-D", str(data), *options], **quiet
    )  # type: ignore[call-overload]  # as above
    while "ready" not in ((data / "postmaster.pid").read_text() if (data / "postmaster.pid").exists() else ""):
        time.sleep(0.001)
    subprocess.run([sys.executable, "-c", "import psycopg"], check=True)
    seconds = time.perf_counter() - began
    process.send_signal(2)
    process.wait()
    return seconds


def compare(rounds: int, base: Path) -> None:
    """Print medians and pairwise ratios."""
    harness = str(Path(sys.executable).parent / "harness")
    made, floors, placed, imports = [], [], [], []
    for number in range(rounds):
        worktree = base / f"worktree {number}"
        worktree.mkdir()
        (worktree / "harness.toml").write_text(f"[stack]\nports = [{PORTS[0]}, {PORTS[1] - 1}]\n")
        floors.append(floor(base / f"floor {number}"))
        made.append(timed([harness, "stack-up"], worktree))
        for _ in range(3):
            imports.append(timed([sys.executable, "-c", "import invoke, psycopg"], worktree))
            placed.append(timed([harness, "stack-up"], worktree))
        timed([harness, "stack-down"], worktree)
        shutil.rmtree(worktree)
    for name, ours, bare, limit in (("from nothing", made, floors, 1.8), ("in place", placed, imports, 1.6)):
        ratio = statistics.median(one / other for one, other in zip(ours, bare, strict=True))
        print(
            f"{name}: {statistics.median(ours) * 1000:.0f} ms, bare {statistics.median(bare) * 1000:.0f} ms, ratio {ratio:.2f} (limit {limit})"
        )


def watch_idle(base: Path) -> None:
    """Print the CPU time and the memory of an idle cluster, after it has settled."""
    worktree = base / "idle"
    worktree.mkdir()
    (worktree / "harness.toml").write_text(f"[stack]\nports = [{PORTS[0]}, {PORTS[1]}]\n")
    harness = str(Path(sys.executable).parent / "harness")
    timed([harness, "stack-up"], worktree)
    timed([harness, "reset"], worktree)
    leader = int((worktree / "test/.stack/data/postmaster.pid").read_text().split()[0])
    time.sleep(SETTLED)
    before = _processor_ms(leader)
    time.sleep(WATCHED)
    print(f"idle: {_processor_ms(leader) - before:.1f} ms of CPU in {WATCHED} s (limit 20), {_memory_mb(leader):.1f} MB (limit 50)")
    timed([harness, "stack-down"], worktree)


def _family(leader: int) -> list[Path]:
    entries = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [entry for entry in entries if int(entry.name) == leader or _fields(entry)[1] == str(leader)]


def _fields(process: Path) -> list[str]:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["", ""]


def _processor_ms(leader: int) -> float:
    """Return the time of the living, to the nanosecond, and of the leader's children that ended, to a clock tick."""
    living = sum(int((process / "schedstat").read_text().split()[0]) for process in _family(leader)) / 1e6
    ended = sum(int(ticks) for ticks in _fields(Path(f"/proc/{leader}"))[13:15]) * 1000 / os.sysconf("SC_CLK_TCK")
    return living + ended


def _memory_mb(leader: int) -> float:
    texts = [(process / "smaps_rollup").read_text() for process in _family(leader)]
    return sum(int(line.split()[1]) for text in texts for line in text.splitlines() if line.startswith("Pss:")) / 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=9)
    parser.add_argument("--idle", action="store_true")
    chosen = parser.parse_args()
    with ground() as folder:
        if chosen.idle:
            watch_idle(folder)
        else:
            compare(chosen.rounds, folder)
