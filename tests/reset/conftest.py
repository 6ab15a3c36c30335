"""The package's own cluster, which can decode its log and prepare transactions, and a repository whose databases were reset once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.builders import SampleRepository, ScratchCluster, Sentinel
from tests.reset.inside import Inside


@pytest.fixture(scope="session")
def scratch_cluster() -> Iterator[ScratchCluster]:
    """Run a cluster with logical decoding."""
    with ScratchCluster(wal_level="logical") as cluster:
        yield cluster


@pytest.fixture
def reset_once(sample_repository: SampleRepository) -> Iterator[SampleRepository]:
    """Return the repository after its first reset; afterwards nothing happened to the application's database."""
    Inside(sample_repository).reset()
    assert sample_repository.cluster is not None
    with Sentinel(sample_repository.cluster, roles=frozenset({"other"})):
        yield sample_repository
