"""Every worktree's cluster on this machine: the list, and the end of those whose worktree has vanished."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from harness import datafolder, leases, postmaster, process, worktree
from harness.errors import StackFailure
from harness.leases import Lease


class Held(NamedTuple):
    """One worktree's cluster: state is up, stopped, external, moved, vanished, or vanished with its server up ("orphan")."""

    path: str
    port: int
    state: str
    bytes: int
    age: float


class Collected(NamedTuple):
    """What was done, or with --dry-run would be done, about one vanished worktree; `kept` says why something stays."""

    path: str
    port: int
    stopped: int
    removed: str
    bytes: int
    kept: str

    def line(self, *, dry_run: bool) -> str:
        """Return what the user reads."""
        done = [f"its server (pid {self.stopped}) {'would be' if dry_run else 'is'} stopped"] if self.stopped else []
        if self.removed:
            done.append(f"{self.bytes // 1_000_000} MB in {self.removed!r} {'would be' if dry_run else 'are'} deleted")
        if self.kept:
            done.append(f"kept: {self.kept}")
        return f"{self.path} (port {self.port}): {'; '.join(done) or ('would be' if dry_run else 'is') + ' forgotten'}"


def listed() -> list[Held]:
    """Return every worktree that holds a port or an external server's test/.env."""
    now = time.time()
    found = []
    for lease in leases.holders():
        size = _size(Path(lease.data)) if lease.data else 0
        found.append(Held(lease.worktree, lease.port, state(lease), size, round(now - lease.taken, 1) if lease.taken else 0.0))
    return found


def state(lease: Lease) -> str:
    """Return what has become of a lease's worktree and its server."""
    is_up = bool(lease.started) and postmaster.start_of(lease.pid) == lease.started
    if not lease.has_vanished:
        return "up" if is_up else "stopped" if lease.data else "external"
    if not is_up:
        return "vanished"
    place = postmaster.folder_of(lease.pid)
    return "moved" if place and place != lease.data else "orphan"


def collect(root: Path, shell: Mapping[str, str], *, dry_run: bool, remove_data: bool) -> list[Collected]:
    """Stop the servers of vanished worktrees; free their ports and, with `remove_data`, delete data that lies elsewhere.

    Raises StackFailure, with nothing done, when git is there and cannot say which worktrees it knows. What may only have
    been moved or unmounted is kept.
    """
    known = _known_to_git(root, shell)
    elsewhere = {os.path.realpath(datafolder.link_of(path)) for path in known}
    done = []
    for lease in leases.holders():
        if lease.has_vanished:
            doubt = _doubt(lease, known, elsewhere)
            done.append(
                Collected(lease.worktree, lease.port, 0, "", 0, doubt)
                if doubt
                else _collect(lease, dry_run=dry_run, remove_data=remove_data)
            )
    return done


def _doubt(lease: Lease, known: Mapping[Path, str], elsewhere: set[str]) -> str:
    """Return why a missing worktree may not have been deleted; empty when it has."""
    where = state(lease)
    if where == "moved":
        return f"it was moved to {postmaster.folder_of(lease.pid)!r}"
    if where == "orphan" and postmaster.folder_of(lease.pid) is None:
        return "its server runs, and the system does not say where; a deleted one ends by itself within a minute"
    if known.get(Path(lease.worktree)) == "locked":
        return "git has this worktree locked"
    if lease.data in elsewhere:
        return "another worktree leads to its data"
    if where != "orphan" and not Path(lease.worktree).parent.is_dir():
        return "the folder above it is missing too: perhaps its disk is not mounted"
    return ""


def _collect(lease: Lease, *, dry_run: bool, remove_data: bool) -> Collected:
    data = Path(lease.data) if lease.data else None
    is_there = data is not None and data.is_dir()
    size = _size(data) if data and is_there else 0
    running = lease.pid if state(lease) == "orphan" else 0
    keeps = is_there and not (remove_data and _is_its_own(lease))
    kept = f"its data in {lease.data!r}; --yes deletes it" if keeps and not remove_data else ""
    if keeps and remove_data:
        kept = f"{lease.data!r}, which is not recorded as its data"
    if not dry_run:
        with leases.alone(Path(lease.worktree)):
            if running:
                postmaster.stop(lease.pid, lease.started, lease.data, at_once=not is_there)
            if data and is_there and not keeps:
                shutil.rmtree(data.parent)
            if keeps:
                leases.save(lease._replace(pid=0, started=""))
            else:
                leases.drop(lease.worktree)
    return Collected(lease.worktree, lease.port, running, lease.data if is_there and not keeps else "", size, kept)


def _is_its_own(lease: Lease) -> bool:
    """Prove that the data is what the lease says, in the folder that only this harness makes."""
    data = Path(lease.data)
    try:
        record = datafolder.read_record(data)
    except StackFailure:
        return False
    made_for = data.parent.name.endswith(f"-{leases.key_of(lease.worktree)}")
    return bool(made_for and record and (record.worktree, record.system_identifier) == (lease.worktree, lease.system_identifier))


def _known_to_git(root: Path, shell: Mapping[str, str]) -> dict[Path, str]:
    """Return what git says of this repository's worktrees: locked, prunable or present; nothing outside a repository."""
    top = worktree.top_of(root)
    if top is None:
        return {}
    plain = {name: value for name, value in shell.items() if not name.startswith("GIT_")}
    try:
        done = process.run(["git", "worktree", "list", "--porcelain", "-z"], env=plain, cwd=top, timeout=60)
    except OSError as error:
        raise _git_failed(error.strerror) from error
    if done.returncode:
        raise _git_failed(" ".join(done.stderr.split()))
    found = {}
    for block in done.stdout.split("\0\0"):
        lines = dict(line.partition(" ")[::2] for line in block.split("\0") if line)
        if "worktree" in lines:
            found[Path(lines["worktree"])] = "locked" if "locked" in lines else "prunable" if "prunable" in lines else "present"
    return found


def _git_failed(finding: str | None) -> StackFailure:
    return StackFailure(
        f"`git worktree list` failed: {finding}", next="Nothing was stopped or removed. Mend it, so that no worktree is taken for vanished."
    )


def _size(folder: Path) -> int:
    total = 0
    for path, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):  # a running server removes files
                total += os.lstat(os.path.join(path, name)).st_blocks * 512  # noqa: PTH118  # thousands of files
    return total
