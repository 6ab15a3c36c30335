"""What looking at a package's residue costs: `python -m benchmarks.residue`. Medians of interleaved rounds, on memory where there is some."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from harness import provision
from harness.targets import parse_dsn
from harness.watch import Watch
from tests.builders import ScratchCluster

TABLES, ROWS, ROUNDS = 100, 1000, 15
TABLE = """
CREATE TABLE t{0}(id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, n int NOT NULL, created timestamptz DEFAULT now(), data jsonb);
CREATE INDEX ON t{0}(name);
INSERT INTO t{0}(name, n, data) SELECT 'name ' || g, g, jsonb_build_object('a', g) FROM generate_series(1, {1}) g;
"""
ALL = range(TABLES)
PACKAGES: dict[str, tuple[float | None, list[str]]] = {
    "nothing": (15, ["SELECT 1"]),
    "every table read": (15, [f"SELECT count(*) FROM t{n}" for n in ALL]),
    "every table written, rolled back": (15, ["BEGIN", *(f"UPDATE t{n} SET n = n WHERE id < 50" for n in ALL), "ROLLBACK"]),
    "a row committed and restored": (15, ["UPDATE t1 SET n = 0 WHERE id = 7", "UPDATE t1 SET n = 7 WHERE id = 7"]),
    "rolled back everywhere, committed and restored in one": (
        None,
        ["BEGIN", *(f"DELETE FROM t{n} WHERE id = 9" for n in ALL), "ROLLBACK", "UPDATE t1 SET n = 7 WHERE id = 7"],
    ),
    "20 tables changed": (50, [f"UPDATE t{n} SET n = n + 1 WHERE id < 50" for n in range(20)]),
    "a table made and dropped": (None, ["CREATE TABLE other(id serial PRIMARY KEY)", "DROP TABLE other"]),
}
"""What a package does, and the milliseconds that looking at it may take."""


def timed(work: Callable[[], Any]) -> float:
    """Return milliseconds."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000


def main() -> int:
    """Print a line per kind of package; 1 when one is over its bound."""
    late = 0
    with ScratchCluster() as cluster:
        cluster.create_role("dev", "LOGIN CREATEDB")
        cluster.create_database("big", "dev")
        for number in ALL:
            cluster.execute(TABLE.format(number, ROWS), database="big", role="dev")
        # As a worktree's own cluster has it.
        password = provision.random_password()
        cluster.execute(f"ALTER ROLE su PASSWORD '{provision.light_verifier(password)}'")
        cluster.passwords["su"] = password
        watch = Watch(parse_dsn("BIG", cluster.dsn("su", "big")), "dev", cluster.connect("su"), shared=False)
        watch.begin()
        figures: dict[str, list[float]] = {name: [] for name in ("the beginning of a run", "a connection alone", *PACKAGES)}
        for _ in range(ROUNDS):
            figures["the beginning of a run"].append(timed(watch.begin))
            figures["a connection alone"].append(timed(lambda: cluster.connect("su", "big").close()))
            for name, (_, statements) in PACKAGES.items():
                with cluster.connect("dev", "big") as session:
                    for statement in statements:
                        session.execute(statement)
                figures[name].append(timed(watch.look))
        for name, found in figures.items():
            bound = PACKAGES[name][0] if name in PACKAGES else None
            median = statistics.median(found)
            late += bool(bound and median > bound)
            print(f"{name:55} median {median:6.1f} ms, best {min(found):6.1f}" + (f", at most {bound}" if bound else ""), flush=True)
    return int(bool(late))


if __name__ == "__main__":
    sys.exit(main())
