"""The guard's own cluster, open at every address of this machine, and repositories whose databases were reset once."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import SampleRepository, ScratchCluster, Sentinel


def has_ipv6() -> bool:
    """Say whether ::1 can be listened at."""
    return _can_bind(socket.AF_INET6, "::1")


def everywhere() -> str:
    """Return the loopback addresses of this machine, as a server listens at them: macOS has no 127.0.0.2."""
    addresses = ["127.0.0.1"] + ["127.0.0.2"] * _can_bind(socket.AF_INET, "127.0.0.2") + ["::1"] * has_ipv6()
    return ",".join(addresses)


def _can_bind(family: socket.AddressFamily, address: str) -> bool:
    try:
        with socket.socket(family) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


@pytest.fixture(scope="session")
def scratch_cluster() -> Iterator[ScratchCluster]:
    """Run a cluster that answers at 127.0.0.1, 127.0.0.2, ::1 and a socket."""
    with ScratchCluster(listen=everywhere(), sockets=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def standing(scratch_cluster: ScratchCluster, tmp_path_factory: pytest.TempPathFactory) -> SampleRepository:
    """Return a repository that was reset once, shared by the tests of a module; each writes the test/.env it is about."""
    repository = SampleRepository(tmp_path_factory.mktemp("guard") / "the shop", scratch_cluster)
    repository.run("reset").expect(0)
    return repository


@pytest.fixture(scope="module")
def standing_sentinel(standing: SampleRepository) -> Iterator[Sentinel]:
    """Watch the application's database for a whole module."""
    assert standing.cluster is not None
    with Sentinel(standing.cluster) as sentinel:
        yield sentinel


@pytest.fixture
def witnessed(standing: SampleRepository, standing_sentinel: Sentinel) -> Iterator[SampleRepository]:
    """Return the module's repository with its own test/.env; afterwards nothing happened to the application's database."""
    standing.env_file()
    yield standing
    standing_sentinel.check()


@pytest.fixture
def socket_folder(scratch_cluster: ScratchCluster) -> Path:
    """Return the folder of the cluster's socket."""
    return scratch_cluster.sockets
