"""BOOT-01 and BOOT-02: a port is one worktree's, and a server that answers is not therefore ours."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.place import Place, is_running


def test_two_worktrees_never_share_a_port(make_place: Callable[..., Place]) -> None:
    """BOOT-01: three ports, three worktrees, each with its own also while it is stopped; the fourth is told who holds them."""
    ports = (18960, 18962)
    first, second, third, fourth = (make_place(f"worktree {number}", ports=ports) for number in range(4))
    first.up().expect(0)
    first.run("stack-down", command="harness").expect(0)
    second.up().expect(0)
    first.up().expect(0)
    third.up().expect(0)
    taken = [place.record["port"] for place in (first, second, third)]
    assert sorted(taken) == [18960, 18961, 18962]
    fourth.up().expect(5, *(str(place.root) for place in (first, second, third)))
    assert not (fourth.root / "test/.env").exists()
    assert not fourth.data.exists()
    for place in (first, second, third):
        place.up().expect(0)
    assert [place.record["port"] for place in (first, second, third)] == taken
    oid = first.value("SELECT oid::int8 FROM pg_database WHERE datname = 'shop'")
    second.run("reset", command="harness").expect(0)
    assert first.value("SELECT oid::int8 FROM pg_database WHERE datname = 'shop'") == oid
    assert first.value("SELECT count(*) FROM pg_database WHERE datname = 'shop_test'") == 0


@contextmanager
def listening(host: str, port: int) -> Iterator[list[bytes]]:
    """Listen like a plain web server; the list gathers what anyone sent."""
    heard: list[bytes] = []
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((host, port))
        server.listen()

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    heard.append(client.recv(100))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield heard
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0", "::"], ids=["ipv4", "ipv6", "every ipv4", "every ipv6"])  # noqa: S104  # what a foreign program does
def test_a_port_that_anyone_listens_on_is_not_taken(host: str, make_place: Callable[..., Place]) -> None:
    """BOOT-02: whatever family a foreign program listens on, the worktree takes the other port and sends it nothing."""
    place = make_place(ports=(18964, 18965))
    try:
        with listening(host, 18964) as heard:
            place.up().expect(0)
            assert place.record["port"] == 18965
            assert heard == []
    except OSError:
        pytest.skip(f"this machine has no {host}")


def test_a_foreign_server_on_our_port_is_never_used(make_place: Callable[..., Place], ground: Path) -> None:
    """BOOT-02: a PostgreSQL that took our port while we were stopped gets no database, role or session; the bootstrap moves away."""
    place = make_place()
    place.up().expect(0)
    port, identifier = place.record["port"], place.record["system_identifier"]
    place.run("stack-down", command="harness").expect(0)
    foreign = Place(ground / "foreign", ground / "foreign state", ports=(port, port))
    foreign.up().expect(0)
    inhabitants = "SELECT array_agg(name ORDER BY name) FROM (SELECT datname::text FROM pg_database UNION SELECT rolname::text FROM pg_roles) AS all_of(name)"
    before, sessions = foreign.value(inhabitants), (foreign.stack / "log").read_text().count("FATAL")
    place.run("reset", command="harness").expect(5, str(port), "another program")
    place.up().expect(0, str(port))
    assert place.record["port"] != port
    assert place.value("SELECT system_identifier::text FROM pg_control_system()") == identifier
    assert place.variables()["TEST_DATABASE_URL"].split("@")[1] == f"127.0.0.1:{place.record['port']}/shop_test"
    place.run("reset", command="harness").expect(0)
    assert foreign.value(inhabitants) == before
    assert (foreign.stack / "log").read_text().count("FATAL") == sessions, "somebody knocked"
    assert is_running(foreign.postmaster())
