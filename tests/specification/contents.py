"""What a database holds, told by the server's own programs and by plain queries: nothing here is the harness's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from tests.specification.mission import MAINTENANCE, Mission
from tests.specification.observer import rows

SEQUENCES = """
SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'S' AND n.nspname <> 'pgharness' ORDER BY 1
"""
OF_DATABASE = """
SELECT pg_encoding_to_char(encoding), datcollate, datctype, datconnlimit, datallowconn, datistemplate,
       (SELECT array_agg(setconfig::text ORDER BY setrole) FROM pg_db_role_setting WHERE setdatabase = d.oid)
FROM pg_database d WHERE datname = current_database()
"""


class Contents(NamedTuple):
    """Every object as pg_dump writes it, every row of every table, the state of every sequence, and the database's own settings."""

    objects: list[str]
    rows: dict[str, list[str]]
    sequences: dict[str, tuple[Any, ...]]
    database: tuple[Any, ...]


def contents(mission: Mission, url: str) -> Contents:
    """Return what the database of `url` holds, the ledger's schema aside."""
    import psycopg

    dump = run(mission, "pg_dump", "--schema-only", "--exclude-schema=pgharness", "--dbname", url)
    objects = [line for line in dump.splitlines() if line and not re.match(r"--|\\(un)?restrict ", line)]
    with psycopg.connect(url) as connection:
        names = [name for (name,) in connection.execute(SEQUENCES.encode())]
        sequences = {name: connection.execute(f"SELECT last_value, is_called FROM {name}".encode()).fetchone() or () for name in names}
        database = connection.execute(OF_DATABASE.encode()).fetchone() or ()
    found = {table: found for table, found in rows(url).items() if not table.startswith(("pgharness.", "current_database"))}
    return Contents(objects, found, sequences, database)


def differences(found: Contents, expected: Contents) -> list[str]:
    """Return in words what one database has and the other has not; empty when they are the same."""
    told = []
    for what in Contents._fields:
        one, other = getattr(found, what), getattr(expected, what)
        sides = [set(map(str, side.items())) if isinstance(side, dict) else set(map(str, side)) for side in (one, other)]
        told += [f"{what}, unexpected: {thing}" for thing in sorted(sides[0] - sides[1])]
        told += [f"{what}, missing: {thing}" for thing in sorted(sides[1] - sides[0])]
        if one != other and not told:
            told.append(f"{what}: another order")
    return told


def by_psql(mission: Mission, name: str, role: str) -> str:
    """Migrate a new database from zero with `psql -f`, file by file in order, and return its URL."""
    mission.ask(f'DROP DATABASE IF EXISTS "{name}"')
    mission.ask(f'CREATE DATABASE "{name}" OWNER "{role}" TEMPLATE template0')
    url = next(url for variable, url in mission.variables().items() if url.endswith(f"/{role}") and variable != MAINTENANCE)
    url = f"{url.rpartition('/')[0]}/{name}"
    files = [path for stream in ("platform", "billing") for path in sorted((mission.root / "migrations" / stream).iterdir())]
    assert len(files) > 10
    run(mission, "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", *(part for path in files for part in ("-f", str(path))), url)
    return url


def run(mission: Mission, program: str, *arguments: str) -> str:
    """Run one of PostgreSQL's client programs, the server's own version where it came with it, and return its output."""
    beside = Path(mission.record["programs"]) / program
    where = str(beside) if os.access(beside, os.X_OK) else shutil.which(program)
    assert where, f"{program} is not installed"
    done = subprocess.run([where, *arguments], env=mission.environment(), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout
