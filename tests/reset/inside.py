"""Resets within the test's own process, where a test needs to be in the middle of one or wants many."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness import session, settings
from harness.results import DatabaseReset
from tests.builders import SampleRepository, ScratchCluster


class Inside(list[str]):
    """What was said during resets of a repository's databases."""

    def __init__(self, repository: SampleRepository, *, own_cluster: bool = False) -> None:
        super().__init__()
        self.repository, self.own_cluster = repository, own_cluster

    @contextmanager
    def opened(self, *, wait: float = 0) -> Iterator[session.Opened]:
        """Hold the locks of both databases."""
        found = settings.load(self.repository.root)
        with session.opened(found, {}, roles=found.test_roles, wait=wait, say=self.append) as run:
            yield run._replace(own_cluster=self.own_cluster)

    def reset(self, *, fresh: bool = False, wait: float = 0) -> list[DatabaseReset]:
        """Reset both databases; `wait` for what a killed reset still does in the server."""
        with self.opened(wait=wait) as run:
            return session.make_pristine(run, fresh=fresh, say=self.append)


def state(repository: SampleRepository) -> dict[str, Any]:
    """Return what stands in the cluster: names, with oid, owner and whether it is open."""
    assert repository.cluster is not None
    rows = repository.cluster.execute(
        "SELECT datname::text, oid::int8, pg_get_userbyid(datdba)::text, datallowconn, datconnlimit FROM pg_database"
    )
    return {row[0]: row[1:] for row in rows}


def leftovers(repository: SampleRepository) -> list[str]:
    """Return the databases under derived names that are no templates: what a reset must not leave."""
    return [name for name in state(repository) if name.startswith(("harness_new_", "harness_old_"))]


def templates(repository: SampleRepository) -> list[str]:
    """Return the names of the templates."""
    return sorted(name for name in state(repository) if name.startswith("harness_tpl_"))


def wait_for(cluster: ScratchCluster, query: str) -> None:
    """Wait until the query says true."""
    deadline = time.monotonic() + 30
    while not cluster.value(query):
        assert time.monotonic() < deadline, query
        time.sleep(0.01)
