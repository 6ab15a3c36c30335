"""BOOT-05 and copies: whose a cluster is when its folder was moved, copied, cleaned or deleted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from tests.cluster.place import Place, is_running, leases, wait_until_gone


def moved(place: Place, target: Path) -> Place:
    """Move a worktree's folder and return it at its new place."""
    place.root.rename(target)
    place.root = target
    return place


def test_a_moved_worktree_keeps_its_cluster(place: Place, ground: Path) -> None:
    """BOOT-05a: moved while its server runs: one server, the data kept, stamps and test/.env of the new place."""
    place.up().expect(0)
    place.run("reset", command="harness").expect(0)
    with place.connect("MC_DB_DSN") as connection:
        connection.execute("CREATE TABLE keep AS SELECT 42 AS v")
    port, pid, identifier = place.record["port"], place.postmaster(), place.record["system_identifier"]
    place.write("test/.env", (place.root / "test/.env").read_text() + "# mine\nOTHER='a b'\n")
    moved(place, ground / "another shop")
    place.run("reset", command="harness").expect(2, "another shop", "bootstrap-stack.sh")
    place.up().expect(0)
    assert not is_running(pid)
    assert (place.record["port"], place.record["system_identifier"]) == (port, identifier)
    assert place.value("SELECT v FROM keep", "MC_DB_DSN") == 42
    assert (place.root / "test/.env").read_text().endswith("# mine\nOTHER='a b'\n")
    assert place.variables()["HARNESS_WORKTREE"] == f"{ground}/another shop".replace(" ", "%20")
    assert [lease["worktree"] for lease in leases(place.state)] == [str(place.root)]
    place.run("reset", command="harness").expect(0)


def test_a_worktree_moved_while_stopped_starts_at_its_new_place(place: Place, ground: Path) -> None:
    """A stopped cluster moves as well; until the bootstrap ran there, nothing starts it."""
    place.up().expect(0)
    identifier = place.record["system_identifier"]
    place.run("stack-down", command="harness").expect(0)
    moved(place, ground / "moved")
    text = (place.root / "test/.env").read_text()
    place.write("test/.env", text.replace("the%20shop", "moved"))
    place.run("reset", command="harness").expect(5, "moved", "bootstrap-stack.sh")
    place.write("test/.env", text)
    place.up().expect(0)
    assert place.record["system_identifier"] == identifier


def test_a_copied_worktree_gets_a_cluster_of_its_own(place: Place, ground: Path) -> None:
    """The original's data is never started from the copy, its server gets no signal, and the copy loses nothing."""
    place.up().expect(0)
    place.run("reset", command="harness").expect(0)
    pid = place.postmaster()
    shutil.copytree(place.root, ground / "copy", symlinks=True)
    copy = Place(ground / "copy", place.state)
    copy.run("reset", command="harness").expect(2, "the shop")
    copy.write("test/.env", (copy.root / "test/.env").read_text().replace("the%20shop", "copy"))
    copy.run("reset", command="harness").expect(5, "copied from", "the shop")
    assert not copy.run("stack-down", command="harness").output.count("is stopped")
    copy.up("--force").expect(0, "the shop", "copied-1")
    assert is_running(pid)
    assert place.postmaster() == pid
    assert copy.record["system_identifier"] != place.record["system_identifier"]
    assert copy.record["port"] != place.record["port"]
    assert (copy.stack / "copied-1/PG_VERSION").exists()
    copy.run("reset", command="harness").expect(0)
    place.run("reset", command="harness").expect(0)


def test_a_copied_env_file_is_replaced_without_force(place: Place, make_place: Callable[..., Place]) -> None:
    """Agents and editors copy ignored files into new worktrees: nobody's hand changed those lines."""
    place.up().expect(0)
    other = make_place("other")
    other.write("test/.env", (place.root / "test/.env").read_text() + "MINE=1\n")
    other.up().expect(0)
    assert other.variables()["MINE"] == "1"
    assert other.variables()["MC_DB_DSN"] != place.variables()["MC_DB_DSN"]


def test_cleaning_under_a_running_server_leaves_no_orphan(place: Place) -> None:
    """After git clean -fdx the next bootstrap finds and stops the server that it recorded, and keeps the port."""
    place.up().expect(0)
    pid, port, identifier = place.postmaster(), place.record["port"], place.record["system_identifier"]
    shutil.rmtree(place.stack)
    (place.root / "test/.env").unlink()
    place.up().expect(0, f"pid {pid}")
    assert not is_running(pid)
    assert place.record["port"] == port
    assert place.record["system_identifier"] != identifier


def test_a_deleted_worktrees_server_is_stopped_by_collecting(place: Place, make_place: Callable[..., Place]) -> None:
    """BOOT-05b: the list names the vanished path; collecting stops that server alone and frees its port."""
    place.up().expect(0)
    other = make_place("other")
    other.up().expect(0)
    pid, port = place.postmaster(), place.record["port"]
    shutil.rmtree(place.root)
    other.run("stack-list", command="harness").expect(0, str(place.root), "orphan")
    other.run("stack-gc", "--dry-run", command="harness").expect(0, str(place.root))
    assert is_running(pid)
    other.run("stack-gc", command="harness").expect(0, str(place.root))
    wait_until_gone(pid)
    assert [lease["port"] for lease in leases(place.state)] == [other.record["port"]]
    assert is_running(other.postmaster())
    again = make_place("again", ports=(port, port))
    again.up().expect(0)


def test_data_elsewhere_is_deleted_only_on_request(make_place: Callable[..., Place], ground: Path) -> None:
    """A vanished worktree's data in a folder of [stack] directory stays until --yes; so does what is not recorded as its."""
    directory = ground / "clusters"
    gone = make_place("gone", f'directory = "{directory}"')
    other = make_place("other", f'directory = "{directory}"')
    gone.up().expect(0)
    other.up().expect(0)
    data = gone.data
    assert directory in data.parents
    shutil.rmtree(gone.root)
    other.run("stack-gc", command="harness").expect(0, str(data), "--yes")
    assert (data / "PG_VERSION").exists()
    other.run("stack-gc", "--yes", command="harness").expect(0, str(data))
    assert not data.parent.exists()
    assert other.data.exists()
    assert is_running(other.postmaster())


def test_collecting_keeps_what_git_has_locked_and_all_when_git_fails(place: Place, make_place: Callable[..., Place], ground: Path) -> None:
    """Nothing when unsure: a locked worktree may lie on a disk that is away, and a failing git tells nothing at all."""
    main = make_place("main", git=True)
    main.git("add", "harness.toml")
    main.git("commit", "-q", "-m", "one")
    main.git("worktree", "add", "-q", "--lock", str(ground / "away"))
    away = Place(ground / "away", main.state)
    away.up().expect(0)
    pid = away.postmaster()
    shutil.rmtree(away.root)
    main.run("stack-gc", command="harness").expect(0, "locked")
    assert is_running(pid)
    (main.root / ".git/HEAD").write_text("broken\n")
    place.up().expect(0)
    shutil.rmtree(place.root)
    main.run("stack-gc", command="harness").expect(5, "git worktree list")
    assert len(leases(main.state)) == 2


def test_a_moved_worktree_is_not_taken_for_vanished(place: Place, make_place: Callable[..., Place], ground: Path) -> None:
    """Its server still works in the folder's new place, so collecting leaves it alone."""
    place.up().expect(0)
    pid = place.postmaster()
    moved(place, ground / "moved")
    make_place("other").run("stack-gc", command="harness").expect(0, "moved to")
    assert is_running(pid)
