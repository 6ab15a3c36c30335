"""A folder with migration streams, and databases to apply them to."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import harness
from harness import database, schema, settings, streams
from harness.settings import Settings, Stream
from harness.targets import Dsn, parse_dsn
from tests.builders import ScratchCluster

_numbers = itertools.count(1)


class Project:
    """A folder with migration streams, and an empty database of the ordinary role `dev` to apply them to."""

    def __init__(self, root: Path, cluster: ScratchCluster) -> None:
        self.root, self.cluster = root, cluster
        if not cluster.execute("SELECT 1 FROM pg_roles WHERE rolname = 'dev'"):
            cluster.create_role("dev", "LOGIN CREATEDB")
        self.name = self.create_database()

    def create_database(self) -> str:
        """Make one more empty database and return its name."""
        name = f"target_{next(_numbers)}"
        self.cluster.create_database(name, "dev")
        return name

    def write(self, path: str, text: str | bytes) -> Path:
        """Write a file."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode() if isinstance(text, str) else text)
        return target

    def files(self, files: Mapping[str, str | bytes], *, stream: str = "core") -> None:
        """Write a stream's files into a folder of its name, and nothing else into it."""
        (self.root / stream).mkdir(exist_ok=True)
        for old in (self.root / stream).iterdir():
            old.unlink()
        for name, text in files.items():
            self.write(f"{stream}/{name}", text)

    def settings(self, *of: Stream, environment: tuple[tuple[str, str], ...] = ()) -> Settings:
        """Return settings with these streams; with none, the one stream `core`."""
        return Settings(
            self.root, settings.DEFAULT_DATABASES, of or (Stream("core", "core"),), (), environment, settings.Run(), settings.Stack()
        )

    def dsn(self, role: str = "dev", name: str | None = None) -> Dsn:
        """Return a role's way into the target, or into another database."""
        return parse_dsn("TEST_DATABASE_URL", self.cluster.dsn(role, name or self.name))

    def apply(
        self,
        *of: Stream,
        application: Dsn | None = None,
        shell: Mapping[str, str] | None = None,
        environment: tuple[tuple[str, str], ...] = (),
        name: str | None = None,
    ) -> list[str]:
        """Apply streams as a reset does: as `dev`, and as the superuser where a stream says so."""
        plan = streams.plan(self.settings(*of, environment=environment))
        return streams.apply(plan, self.dsn(name=name), self.dsn("su", name), application=application, shell=shell or {})

    def migrate(self, name: str | None = None) -> list[str]:
        """Call `harness.migrate` with the one stream `core`."""
        return harness.migrate(self.dsn(name=name).text, streams={"core": self.root / "core"})

    def rows(self, query: str, name: str | None = None) -> list[tuple[Any, ...]]:
        """Return a query's rows."""
        return self.cluster.execute(query, database=name or self.name)

    def value(self, query: str) -> Any:
        """Return a query's only value."""
        return self.cluster.value(query, database=self.name)

    def tables(self, name: str | None = None) -> set[str]:
        """Return the users' tables, with their schema where it is not `public`."""
        query = "SELECT schemaname, tablename FROM pg_tables WHERE schemaname !~ '^(pg_|information_schema|pgharness)'"
        return {table if place == "public" else f"{place}.{table}" for place, table in self.rows(query, name)}

    def ledger(self) -> list[str]:
        """Return what the ledger holds, in order."""
        return [f"{stream}/{file}" for stream, file in self.rows("SELECT stream, file FROM pgharness.applied ORDER BY applied_at")]

    def describe(self, name: str | None = None) -> tuple[str, ...]:
        """Return the schema of the target, or of another database."""
        with database.connect(self.dsn("su", name), purpose="test") as connection:
            return schema.describe(connection)
