"""The witness in every package of a nested run: when it ran, what it ran, and which rows it saw before and after.

It is copied beside the packages as their conftest.py and writes one file per package into `$MISSION_OBSERVATIONS`.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

BEGUN = time.monotonic()
TABLES = """
SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND n.nspname !~ '^(pg_|information_schema)' ORDER BY 1
"""
PATIENCE = 120


def pytest_configure(config: pytest.Config) -> None:
    """Watch where somebody wants to know."""
    folder = os.environ.get("MISSION_OBSERVATIONS")
    if folder:
        config.pluginmanager.register(Observer(Path(folder)))


class Observer:
    """Notes what happens in one package."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = os.environ.get("TEST_DATABASE_URL") or os.environ["E2E_DATABASE_URL"]
        self.seen: dict[str, Any] = {"begun": BEGUN, "executed": []}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Look before the first test, and wait where a gate is closed: somebody wants this package to be at work."""
        self.seen["package"] = session.items[0].path.parent.name
        self.seen["before"] = rows(self.url)
        self.write("begun")
        gate = self.folder / f"{self.seen['package']}.gate"
        end = time.monotonic() + PATIENCE
        while gate.exists() and time.monotonic() < end:
            time.sleep(0.01)

    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Note that the test's body is executed, whatever a report may say."""
        self.seen["executed"].append(item.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Look after the last test."""
        if "package" in self.seen:
            self.seen["after"] = rows(self.url)
            self.seen["ended"] = time.monotonic()
            self.write("json")

    def write(self, suffix: str) -> None:
        """Write what was seen so far, complete or not at all."""
        path = self.folder / f"{self.seen['package']}.{suffix}"
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(self.seen))
        draft.rename(path)


def rows(url: str) -> dict[str, list[str]]:
    """Return every row of every table, as text, and which database it was."""
    import psycopg

    with psycopg.connect(url) as connection:
        tables = [table for (table,) in connection.execute(TABLES)]
        found = {
            table: sorted(row for (row,) in connection.execute(f"SELECT t::text FROM {table} AS t".encode()).fetchall()) for table in tables
        }
        ((database,),) = connection.execute("SELECT current_database()::text").fetchall()
        return {**found, "current_database": [database]}
