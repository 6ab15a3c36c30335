"""The guard's own cluster, open at every address of this machine, and repositories whose databases were reset once."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pytest

from harness import session, settings
from harness.errors import HarnessError
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
    """Run a cluster that answers at every loopback address and a socket."""
    with ScratchCluster(listen=everywhere(), sockets=True) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SampleRepository]:
    """Return a repository that was reset once, on a cluster of its own; each test writes the test/.env it is about."""
    with ScratchCluster(listen=everywhere(), sockets=True) as cluster:
        repository = SampleRepository(tmp_path_factory.mktemp("guard") / "the shop", cluster)
        repository.run("reset").expect(0)
        yield repository


@pytest.fixture(scope="session")
def standing_sentinel(standing: SampleRepository) -> Iterator[Sentinel]:
    """Watch the application's database all the time."""
    assert standing.cluster is not None
    with Sentinel(standing.cluster) as sentinel:
        yield sentinel


@pytest.fixture
def witnessed(standing: SampleRepository, standing_sentinel: Sentinel) -> Iterator[SampleRepository]:
    """Return the standing repository with its own test/.env; afterwards nothing happened to the application's database."""
    standing.env_file()
    yield standing
    standing_sentinel.check()


class Verdict(NamedTuple):
    """What a command would exit with, and all that it would say."""

    code: int
    output: str

    def expect(self, code: int, *phrases: str) -> Verdict:
        """Assert the code and the words, as `Completed.expect` does."""
        assert self.code == code, self.output
        for phrase in phrases:
            assert phrase in self.output
        return self


def verdict(repository: SampleRepository, *, adopt: str = "", shell: Mapping[str, str] | None = None) -> Verdict:
    """Do what `inv reset` does before it touches anything, in this process, for which a table of cases has time."""
    said: list[str] = []
    values, variables = settings.load(repository.root.resolve()), shell or {}
    try:
        roles = session.roles_named(values, variables, adopt, values.test_roles) if adopt else values.test_roles
        with session.opened(values, variables, roles=roles, wait=0, say=said.append, adopt=adopt):
            pass
    except HarnessError as failure:
        return Verdict(failure.code, "\n".join([*said, str(failure)]))
    return Verdict(0, "\n".join(said))
