"""Generated projects of many small packages, some of which pollute the database for a later one."""

from __future__ import annotations

import json
import random
import shlex
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.builders import SampleRepository
from tests.verdict.conftest import SCHEMA

SETTINGS = """\
[databases]
application = "shop"
test = "shop_test"

[[migrations]]
stream = "core"
directory = "migrations/core"

[packages]
test = [
{packages}
]
"""
FAIL = "SELECT 1 / (CASE WHEN {condition} THEN 0 ELSE 1 END);"
WITH_PYTHON = """\
import os, re, sys, psycopg
with psycopg.connect(os.environ["TEST_DATABASE_URL"], autocommit=True) as connection:
    for statement in re.split(r";$", open("run.sql").read(), flags=re.M):
        connection.execute(statement)
"""


class Kind(NamedTuple):
    """A way to pollute: what the polluter runs, when a victim fails for it, and what the residue must name."""

    pollute: str
    condition: str
    residue: str


KINDS = {
    "row": Kind("INSERT INTO item(name) VALUES ('left');", "EXISTS (SELECT FROM item WHERE name = 'left')", "public.item 20 → 21 rows"),
    "update": Kind("UPDATE note SET body = 'left';", "EXISTS (SELECT FROM note WHERE body = 'left')", "public.note 1 → 1 rows (1 written)"),
    "delete": Kind("DELETE FROM ticket;", "NOT EXISTS (SELECT FROM ticket)", "public.ticket 1 → 0 rows"),
    "sequence": Kind(
        "SELECT setval('free_seq', 500);", "(SELECT last_value FROM free_seq) = 500", "sequence public.free_seq moved 1 → 500"
    ),
    "setting": Kind(
        "ALTER DATABASE shop_test SET timezone = 'Asia/Tokyo';",
        "current_setting('timezone') = 'Asia/Tokyo'",
        "setting TimeZone of this database: none → 'Asia/Tokyo'",
    ),
    # A client that is killed leaves its statement at work in the server, and with it the lock.
    "session": Kind("SELECT pg_advisory_lock(42), pg_sleep(300);", "NOT pg_try_advisory_lock(42)", "advisory lock 42"),
}
CLEAN = (
    "SELECT count(*) FROM item;",
    "BEGIN;\nINSERT INTO item(name) VALUES ('mine');\nROLLBACK;",
    "BEGIN;\nDELETE FROM ticket;\nUPDATE item SET n = 1;\nROLLBACK;",
    "UPDATE item SET n = 5 WHERE id = 2;\nUPDATE item SET n = 0 WHERE id = 2;",
    "INSERT INTO part VALUES (1, 'north');\nDELETE FROM part;",
    "CREATE TABLE own(id serial);\nINSERT INTO own DEFAULT VALUES;\nDROP TABLE own;",
    "ALTER DATABASE shop_test SET work_mem = '8MB';\nALTER DATABASE shop_test RESET work_mem;",
    "SELECT pg_advisory_lock(7);",
)


class Planted(NamedTuple):
    """A victim and those whose work, taken together, makes it fail."""

    victim: str
    polluters: tuple[str, ...]


class Project:
    """A project of `size` packages whose polluters are known: none, one, two of their own, or two that only act together."""

    def __init__(self, repository: SampleRepository, seed: int, size: int, polluters: int, *, together: bool = False) -> None:
        self.repository, self.chance, self.size = repository, random.Random(seed), size
        self.names = [f"tests/p{number:02}" for number in range(size)]
        self.kinds: dict[str, str] = {}
        self.planted: list[Planted] = []
        for name in self.names:
            self._write(name, "\n".join(self.chance.choices(CLEAN, k=2)))
        if polluters:
            self._plant(polluters, together=together)
        lines = [f"  {{ path = {json.dumps(name)}, command = ['sh', 'run.sh'] }}," for name in self.names]
        repository.settings(SETTINGS.format(packages="\n".join(lines)))
        repository.migration("0001_base.sql", SCHEMA + "INSERT INTO note(body) VALUES ('first');\n")

    def _plant(self, polluters: int, *, together: bool) -> None:
        places = sorted(self.chance.sample(range(self.size), polluters + (1 if together else polluters)))
        kinds = self.chance.sample(sorted(KINDS), polluters)
        bad, victims = (places[:-1], places[-1:]) if together else (places[:polluters], places[polluters:])
        for place, kind in zip(bad, kinds, strict=True):
            self.kinds[self.names[place]] = kind
            self._write(self.names[place], KINDS[kind].pollute, is_killed=kind == "session")
        for number, place in enumerate(victims):
            conditions = [KINDS[kind].condition for kind in (kinds if together else [kinds[number]])]
            self._write(self.names[place], FAIL.format(condition=" AND ".join(conditions)))
            by = bad if together else [bad[number]]
            self.planted.append(Planted(self.names[place], tuple(self.names[one] for one in by)))

    def _write(self, name: str, sql: str, *, is_killed: bool = False) -> None:
        cluster = self.repository.cluster
        assert cluster is not None
        psql = cluster.binaries / "psql"
        client = f'{shlex.quote(str(psql))} -X -q -v ON_ERROR_STOP=1 -f run.sql "$TEST_DATABASE_URL"'
        if not psql.exists():
            self.repository.write(f"{name}/run.py", WITH_PYTHON)
            client = f"{shlex.quote(sys.executable)} run.py"
        script = f"{client} >/dev/null &\nsleep 1\nkill -9 $!\n" if is_killed else f"exec {client} >/dev/null\n"
        self.repository.write(f"{name}/run.sh", script)
        self.repository.write(f"{name}/run.sql", sql + "\n")

    def document(self, *arguments: str, code: int) -> dict[str, Any]:
        """Run a task with --json, expect its exit code, and return the document."""
        path = self.repository.root / "document.json"
        self.repository.run(*arguments, "--json", str(path), timeout=300).expect(code)
        found: dict[str, Any] = json.loads(path.read_text())
        return found


def residues(document: dict[str, Any]) -> dict[str, str]:
    """Return what each package left, by its name; those that left nothing are left out."""
    found = {package["package"]: (package["residue"] or {}).get("summary", "") for package in document["packages"]}
    return {name: summary for name, summary in found.items() if summary}


def failed(document: dict[str, Any]) -> list[str]:
    """Return the packages that are not fine."""
    return [package["package"] for package in document["packages"] if not package["fine"]]


def folder(tmp_path: Path, number: int) -> Path:
    """Return a project's folder."""
    return tmp_path / f"project {number}"
