"""A database like one that a reset has just made, watched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from harness.targets import parse_dsn
from harness.watch import Watch
from tests.builders import ScratchCluster, identifier, literal

SCHEMA = """
CREATE TABLE item(id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, n int DEFAULT 0);
INSERT INTO item(name) SELECT 'item ' || g FROM generate_series(1, 20) g;
CREATE TABLE note(id serial PRIMARY KEY, item_id bigint REFERENCES item, body text);
CREATE SEQUENCE free_seq;
CREATE TABLE ticket(number bigint DEFAULT nextval('free_seq'), seat int UNIQUE);
INSERT INTO ticket(seat) VALUES (1);
CREATE TABLE "odd ""name"(id int);
CREATE TABLE part(id int, region text) PARTITION BY LIST (region);
CREATE TABLE part_north PARTITION OF part FOR VALUES IN ('north');
CREATE MATERIALIZED VIEW total AS SELECT count(*) AS items FROM item;
CREATE VIEW cheap AS SELECT * FROM item WHERE n < 10;
CREATE FUNCTION twice(x int) RETURNS int LANGUAGE sql AS 'SELECT 2 * x';
CREATE TYPE mood AS ENUM ('good', 'bad');
"""


class Watched:
    """A watched database and its owner's way in."""

    def __init__(self, cluster: ScratchCluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.beside = cluster.connect("su", "postgres")
        self.watch_anew()

    def watch_anew(self, *, clears: bool = False) -> None:
        """Begin with the database as it is now."""
        self.watch = Watch(parse_dsn("WATCHED", self.cluster.dsn("su", self.name)), "dev", self.beside, shared=False, clears=clears)
        self.watch.begin()

    def run(self, sql: str, *, role: str = "dev") -> list[tuple[Any, ...]]:
        """Do what a package does: a session of its own, closed afterwards."""
        return self.cluster.execute(sql, database=self.name, role=role)

    def summary(self) -> str:
        """Look, and return the line; a dash for nothing at all."""
        found = self.watch.look()
        return "-" if found is None else found.summary


ROLES = {"su", "dev"}


@pytest.fixture(scope="session")
def sample_database(scratch_cluster: ScratchCluster) -> str:
    """Make a database of role `dev` for the tests to clone."""
    scratch_cluster.clear()
    scratch_cluster.create_role("dev", "LOGIN CREATEDB CREATEROLE")
    scratch_cluster.create_database("sample", "dev")
    scratch_cluster.execute(SCHEMA, database="sample", role="dev")
    return "sample"


@pytest.fixture
def watched(scratch_cluster: ScratchCluster, sample_database: str) -> Iterator[Watched]:
    """Return a watched database of role `dev`; what a test made beside it goes too."""
    scratch_cluster.execute(f"CREATE DATABASE shop_test OWNER dev TEMPLATE {sample_database}")
    found = Watched(scratch_cluster, "shop_test")
    yield found
    found.beside.close()
    for (gid,) in scratch_cluster.execute("SELECT gid FROM pg_prepared_xacts"):
        scratch_cluster.execute(f"ROLLBACK PREPARED {literal(gid)}", database="shop_test")
    for name in set(scratch_cluster.databases()) - {sample_database}:
        scratch_cluster.execute(f"DROP DATABASE {identifier(name)} WITH (FORCE)")
    scratch_cluster.execute("ALTER ROLE dev RESET ALL")
    for (role,) in scratch_cluster.execute("SELECT rolname FROM pg_roles WHERE rolname !~ '^pg_'"):
        if role not in ROLES:
            scratch_cluster.execute(f"DROP ROLE {identifier(role)}")
