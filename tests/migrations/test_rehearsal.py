"""`inv migrations-check`: the streams from zero, twice, beside databases that stay as they are."""

from __future__ import annotations

import json

from tests.builders import SampleRepository, Sentinel, untouched


def test_streams_that_give_the_same_each_time(sample_repository: SampleRepository) -> None:
    """Both times are compared, the test database keeps its content, and nothing stays beside it."""
    cluster = sample_repository.cluster
    assert cluster is not None
    sample_repository.run("reset").expect(0)
    before = cluster.databases()
    with Sentinel(cluster), untouched(cluster, "shop_test", "shop_e2e"):
        done = sample_repository.run("migrations-check", "--json", "-").expect(0)
    assert cluster.databases() == before
    document = json.loads(done.stdout)
    assert (document["migrations"], document["differences"]) == (1, [])


def test_streams_that_differ_from_time_to_time(sample_repository: SampleRepository) -> None:
    """An object whose name depends on the session is named for both times, and the exit code is 4."""
    sample_repository.migration("0002_odd.sql", "DO $$ BEGIN EXECUTE 'CREATE TABLE t' || pg_backend_pid() || '(i int)'; END $$")
    sample_repository.run("migrations-check").expect(4, "only the first time: relation public.t", "only the second time: relation public.t")


def test_a_failing_stream_before_the_first_reset(sample_repository: SampleRepository) -> None:
    """The error is a reset's, and the test database that was not there is still not there."""
    cluster = sample_repository.cluster
    assert cluster is not None
    sample_repository.migration("0002_named.sql", "ALTER DATABASE shop_test SET timezone = 'UTC'; SELECT 1/0")
    sample_repository.run("migrations-check").expect(4, "0002_named.sql:1", "22012")
    assert cluster.databases() == ["shop"]
