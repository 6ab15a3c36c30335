"""Which worktree holds which port, kept in the user's state folder; and one bootstrap at a time per worktree."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from harness.errors import StackFailure
from harness.settings import environment

LOCK_WAIT = 180.0
"""Seconds to wait for another bootstrap of the same worktree."""


class Lease(NamedTuple):
    """What a worktree holds, and what finds its server when its data folder is gone; port 0 is an external server's."""

    worktree: str
    port: int
    data: str = ""
    pid: int = 0
    started: str = ""
    system_identifier: str = ""
    written: dict[str, str] = {}  # noqa: RUF012  # never changed, and a NamedTuple has no factories
    taken: float = 0.0

    @property
    def has_vanished(self) -> bool:
        """Whether the worktree is no longer there."""
        return not Path(self.worktree).is_dir()


def state_folder() -> Path:
    """Return the folder of the leases: $HARNESS_STATE_DIR, else the user's state folder, also where HOME is unset."""
    shell = environment()
    if shell.get("HARNESS_STATE_DIR"):
        return Path(shell["HARNESS_STATE_DIR"]).absolute()
    if shell.get("XDG_STATE_HOME", "").startswith("/"):
        return Path(shell["XDG_STATE_HOME"]) / "pgharness"
    home = shell.get("HOME", "")
    if not home.startswith("/"):
        import pwd

        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            raise StackFailure(
                f"uid {os.getuid()} has no home folder, and HOME is not set", next="Set HARNESS_STATE_DIR to a folder of your own."
            ) from None
    return Path(home) / ".local/state/pgharness"


def key_of(worktree: Path | str) -> str:
    """Return what names a worktree's files here: a digest of its real path, never its branch."""
    return hashlib.sha256(os.fsencode(worktree)).hexdigest()[:16]


def read(worktree: Path | str) -> Lease | None:
    """Return the worktree's lease, None when it has none that can be read."""
    return _read(state_folder() / f"{key_of(worktree)}.json")


def holds_cluster(worktree: Path | str) -> bool:
    """Say whether the worktree's lease is of a cluster of its own, rather than of an external server's test/.env."""
    lease = read(worktree)
    return lease is not None and bool(lease.data)


def holders() -> list[Lease]:
    """Return every lease, by port."""
    found = (_read(path) for path in state_folder().glob("*.json"))
    return sorted((lease for lease in found if lease), key=lambda lease: (lease.port, lease.worktree))


def save(lease: Lease) -> None:
    """Write the lease, complete or not at all."""
    folder = _folder()
    path = folder / f"{key_of(lease.worktree)}.json"
    draft = path.with_suffix(".new")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:
            json.dump(lease._asdict(), stream)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        _unwritable(folder, error)


def drop(worktree: Path | str) -> None:
    """Give the worktree's port back and forget the worktree."""
    for suffix in (".json", ".new", ".lock"):
        with suppress(OSError):
            (state_folder() / f"{key_of(worktree)}{suffix}").unlink(missing_ok=True)


def take(
    worktree: Path, ports: tuple[int, int], *, former: Path | None = None, recorded: int = 0, avoid: frozenset[int] = frozenset()
) -> Lease:
    """Return the worktree's lease on a port of `ports`, taking one, or the one of `former` that it was moved from.

    A held port stays its holder's while the worktree exists, running or not; `recorded` is the one that the cluster
    itself remembers, for the day that the lease is lost. `avoid` names ports that the server could not bind. Raises
    StackFailure listing the holders when the range is full.
    """
    first, last = ports
    with _locked(_folder() / "ports.lock", "the leases"):
        leases = holders()
        for owner in (worktree, former):
            mine = next((lease for lease in leases if lease.worktree == str(owner)), None)
            if mine and first <= mine.port <= last and mine.port not in avoid:
                if owner is former:
                    mine = mine._replace(worktree=str(worktree))
                    save(mine)
                    drop(str(former))
                return mine
        mine = next((lease for lease in leases if lease.worktree == str(worktree)), Lease(str(worktree), 0))
        others = {lease.port: lease for lease in leases if lease.worktree != str(worktree)}
        turned = first + int(key_of(worktree), 16) % (last - first + 1)  # spread, so that users of one machine seldom meet
        order = [*((recorded,) if first <= recorded <= last else ()), *range(turned, last + 1), *range(first, turned)]
        for port in (
            *(port for port in order if port not in others),
            *(port for port in order if port in others and others[port].has_vanished),
        ):
            if port not in avoid and (port == recorded or not is_taken(port)):
                if port in others:
                    drop(others[port].worktree)
                mine = mine._replace(port=port, taken=time.time())
                save(mine)
                return mine
    held = [f"{port} {others[port].worktree if port in others else 'another program'}" for port in range(first, last + 1)]
    raise StackFailure(
        f"every port of [stack] ports {first} to {last} is taken: {', '.join(held[:20])}{' and more' if len(held) > 20 else ''}",  # noqa: PLR2004  # a readable line
        next="Widen the range in harness.toml, or run `inv stack-gc` to free those of vanished worktrees.",
    )


def is_taken(port: int) -> bool:
    """Say whether something listens on the port, on any address of either family; asks only by binding."""
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):  # noqa: S104  # bound for an instant, never listened on
        try:
            probe = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue
        with probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return True
    return False


@contextmanager
def alone(worktree: Path) -> Iterator[int]:
    """Keep every other bootstrap, start and stop of this worktree's cluster waiting.

    A program that is given the descriptor keeps them waiting too, should we be killed before it ends.
    """
    with _locked(_folder() / f"{key_of(worktree)}.lock", f"worktree {str(worktree)!r}") as descriptor:
        yield descriptor


@contextmanager
def _locked(path: Path, what: str) -> Iterator[int]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        _unwritable(path.parent, error)
    with os.fdopen(descriptor, "r+") as stream:
        deadline = time.monotonic() + LOCK_WAIT
        while not _try_lock(stream.fileno()):
            if time.monotonic() > deadline:
                holder = stream.read(20).strip() or "unknown"
                raise StackFailure(
                    f"{what} is in use by another command of the harness (pid {holder})", next="Wait for it to end, or end it."
                )
            time.sleep(0.01)
        with suppress(OSError):  # only for the message above: a full disk takes nothing from the lock
            stream.truncate()
            os.pwrite(stream.fileno(), f"{os.getpid()}\n".encode(), 0)
        yield stream.fileno()


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _folder() -> Path:
    folder = state_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        _unwritable(folder, error)
    return folder


def _unwritable(folder: Path, error: OSError) -> NoReturn:
    raise StackFailure(
        f"the state folder {folder} cannot be written: {error.strerror}", next="Mend it, or set HARNESS_STATE_DIR to a folder of your own."
    ) from error


def _read(path: Path) -> Lease | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        lease = Lease(**{key: found[key] for key in Lease._fields if key in found})
    except (OSError, ValueError, TypeError):
        return None
    model = Lease("", 0, taken=0.0)
    is_whole = all(
        isinstance(value, (int, float) if key == "taken" else type(getattr(model, key))) for key, value in lease._asdict().items()
    )
    return lease if is_whole else None
