"""Streams that act on what databases share: two built at once would collide."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import streams, templates
from harness.settings import DEFAULT_DATABASES, Run, Settings, Stack, Stream
from tests.builders import SampleRepository


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("CREATE ROLE reader", True),
        ("alter user reader SET timezone = 'UTC'", True),
        ("DROP GROUP readers", True),
        ("GRANT CONNECT ON DATABASE shop_test TO reader", True),
        ("ALTER ROLE reader IN DATABASE shop_test SET timezone = 'UTC'", True),
        ("CREATE TABLE roles(role text); GRANT SELECT ON roles TO reader", False),
    ],
)
def test_what_reaches_out_of_a_database(tmp_path: Path, sql: str, *, expected: bool) -> None:
    """Roles and literal database names belong to the cluster; tables do not."""
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "0001_it.sql").write_text(sql)
    settings = Settings(tmp_path, DEFAULT_DATABASES, (Stream("core", "core"),), (), (), Run(), Stack())
    assert templates.reaches_out(streams.plan(settings)) is expected


def test_a_guarded_role_in_both_databases(sample_repository: SampleRepository) -> None:
    """Each database asks whether the role is there before it makes it: built at once, both would find it missing."""
    guarded = "DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'reader') THEN CREATE ROLE reader; END IF; END $$;"
    cluster = sample_repository.cluster
    assert cluster is not None
    cluster.execute("ALTER ROLE dev CREATEROLE")
    sample_repository.migration("0002_role.sql", f"{guarded} SELECT pg_sleep(0.2);")
    sample_repository.run("reset", "--fresh").expect(0)
    cluster.execute("DROP ROLE reader")
    sample_repository.run("reset", "--fresh").expect(0)
