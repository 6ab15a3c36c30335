"""Ports and who holds them."""

from __future__ import annotations

import os
import pwd
import threading
import time
from pathlib import Path

import pytest

from harness import leases
from harness.errors import StackFailure

PORTS = (17990, 17992)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a state folder of the test's own."""
    monkeypatch.setenv("HARNESS_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(leases, "is_taken", lambda _: False)
    return tmp_path / "state"


def worktree(folder: Path, name: str) -> Path:
    """Return a folder that is there."""
    (folder / name).mkdir()
    return folder / name


@pytest.mark.parametrize(
    ("shell", "expected"),
    [
        ({"HARNESS_STATE_DIR": "/s", "XDG_STATE_HOME": "/x", "HOME": "/h"}, "/s"),
        ({"XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/pgharness"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/h"}, "/h/.local/state/pgharness"),
        ({}, f"{pwd.getpwuid(os.getuid()).pw_dir}/.local/state/pgharness"),
    ],
    ids=["ours", "XDG", "home", "nothing set"],
)
def test_where_the_state_folder_is(shell: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our variable, then the user's state folder, then the passwd database's home."""
    for name in ("HARNESS_STATE_DIR", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in shell.items():
        monkeypatch.setenv(name, value)
    assert str(leases.state_folder()) == expected


def test_an_account_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a container's arbitrary uid."""
    for name in ("HARNESS_STATE_DIR", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 987654)
    with pytest.raises(StackFailure, match="uid 987654 has no home folder") as caught:
        leases.state_folder()
    assert caught.value.next == "Set HARNESS_STATE_DIR to a folder of your own."


@pytest.mark.parametrize(
    "text",
    ['{"worktree": "/x", "port": "17990"}', '{"worktree": null, "port": null}', '{"worktree": "/x", "port": 1, "data": 5}', "[]", "", "{"],
)
def test_a_lease_that_is_none_holds_nothing(state: Path, tmp_path: Path, text: str) -> None:
    """A broken file takes no port, and keeps nobody from another."""
    state.mkdir()
    (state / "x.json").write_text(text)
    assert leases.holders() == []
    assert leases.take(worktree(tmp_path, "a"), PORTS).port in range(17990, 17993)
    assert [lease.worktree for lease in leases.holders()] == [str(tmp_path / "a")]


def test_a_port_stays_its_worktrees(tmp_path: Path) -> None:
    """Asked again, the same one; another worktree gets another, and the fourth of three is told all holders."""
    places = [worktree(tmp_path, name) for name in "abcd"]
    taken = [leases.take(place, PORTS).port for place in places[:3]]
    assert sorted(taken) == [17990, 17991, 17992]
    assert [leases.take(place, PORTS).port for place in places[:3]] == taken
    with pytest.raises(StackFailure) as caught:
        leases.take(places[3], PORTS)
    for place, port in zip(places, taken, strict=False):
        assert f"{port} {place}" in caught.value.message
    assert leases.read(places[3]) is None


def test_a_vanished_worktrees_port_is_the_last_resort(tmp_path: Path) -> None:
    """It is given away only when no other is left."""
    gone = worktree(tmp_path, "gone")
    port = leases.take(gone, PORTS).port
    gone.rmdir()
    others = [leases.take(worktree(tmp_path, name), PORTS).port for name in "ab"]
    assert port not in others
    assert leases.take(worktree(tmp_path, "c"), PORTS).port == port
    assert leases.read(gone) is None


def test_a_moved_worktree_takes_its_lease_along(tmp_path: Path) -> None:
    """Port, digests and all; the former place holds nothing any more."""
    old = worktree(tmp_path, "old")
    leases.save(leases.take(old, PORTS)._replace(written={"A": "1"}))
    new = tmp_path / "new"
    old.rename(new)
    lease = leases.take(new, PORTS, former=old)
    assert (lease.worktree, lease.written) == (str(new), {"A": "1"})
    assert leases.holders() == [lease]


def test_a_lost_lease_is_found_again_by_the_clusters_own_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded port is taken although something listens there: it is our own server."""
    monkeypatch.setattr(leases, "is_taken", lambda port: port == 17991)
    assert leases.take(worktree(tmp_path, "a"), PORTS, recorded=17991).port == 17991
    assert leases.take(worktree(tmp_path, "b"), PORTS, recorded=17991).port != 17991
    assert leases.take(worktree(tmp_path, "c"), (17980, 17981), recorded=17991).port in (17980, 17981)


def test_a_port_that_could_not_be_bound_is_avoided(tmp_path: Path) -> None:
    """The worktree moves to another one and keeps that."""
    place = worktree(tmp_path, "a")
    first = leases.take(place, PORTS).port
    second = leases.take(place, PORTS, avoid=frozenset({first})).port
    assert second != first
    assert leases.take(place, PORTS).port == second


def test_any_number_at_once_get_as_many_ports(tmp_path: Path) -> None:
    """Twenty at the same moment, twenty ports."""
    places = [worktree(tmp_path, f"w{number}") for number in range(20)]
    found: list[int] = []
    threads = [threading.Thread(target=lambda place=place: found.append(leases.take(place, (17900, 17919)).port)) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(17900, 17920))


def test_one_worktree_one_bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits for the first; after its patience it names the first one's pid; another worktree is not concerned."""
    monkeypatch.setattr(leases, "LOCK_WAIT", 0.1)
    place = worktree(tmp_path, "a")
    with leases.alone(place):
        with leases.alone(worktree(tmp_path, "b")):
            pass
        with pytest.raises(StackFailure, match=rf"pid {os.getpid()}"), leases.alone(place):
            pass
    began = time.monotonic()
    with leases.alone(place):
        assert time.monotonic() - began < 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"port": 1}', '{"worktree": "/a", "port": 1, "later": true}'])
def test_a_broken_lease_holds_nothing(text: str, state: Path) -> None:
    """What cannot be read is no lease; keys of a later version are no fault."""
    state.mkdir()
    (state / "x.json").write_text(text)
    assert [lease.port for lease in leases.holders()] == ([1] if "later" in text else [])


def test_a_state_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder, the reason and the variable that leads elsewhere."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HARNESS_STATE_DIR", str(tmp_path / "file/state"))
    with pytest.raises(StackFailure) as caught, leases.alone(tmp_path):
        pass
    assert str(tmp_path / "file/state") in caught.value.message
    assert "HARNESS_STATE_DIR" in caught.value.next
