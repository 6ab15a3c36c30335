"""The worktree's data folder: where it lies, the record inside it, how it is made, and whose it is after a move or a copy."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from harness import leases, process
from harness.errors import StackFailure, conceal
from harness.servers import Account, Server, child_environment
from harness.settings import BOOTSTRAP, Settings, Stack
from harness.targets import Dsn

RECORD = "pgharness.json"
SUPERUSER = "harness"
HOST = "127.0.0.1"
_NO_SPACE = 1_000_000


class Record(NamedTuple):
    """What the bootstrap must know of a cluster later; it lies in the data folder and moves with it.

    `options` are the running server's arguments; `former` is the superuser's previous password while `renew` says that new ones may not be in force yet.
    """

    worktree: str
    port: int
    system_identifier: str
    major: int
    programs: str
    embedded: bool
    superuser: str
    passwords: dict[str, str]
    renew: bool = True
    former: str = ""
    pid: int = 0
    started: str = ""
    options: list[str] = []  # noqa: RUF012  # never changed, and a NamedTuple has no factories

    @property
    def process(self) -> tuple[int, str]:
        """The last started server: its pid and start."""
        return (self.pid, self.started)

    def dsn(self, variable: str, user: str, name: str, *, password: str = "") -> Dsn:
        """Return the DSN that leads to this cluster as `user`."""
        bare = Dsn(variable, "", HOST, "", self.port, user, password or self.passwords[user], name, ())
        conceal(bare.password)
        return bare._replace(text=bare.url())


def stack_folder(settings: Settings) -> Path:
    """Return test/.stack, where the log and the way to the data folder are, wherever the data lies."""
    return settings.root / Stack().directory


def link_of(root: Path) -> Path:
    """Return where a worktree's data folder is, or the link to it where it lies elsewhere."""
    return root / Stack().directory / "data"


def find(settings: Settings) -> Path:
    """Return the real path of the worktree's data folder, which may not be there yet."""
    link = link_of(settings.root)
    real = Path(os.path.realpath(link))
    return real if real.is_dir() or settings.stack.directory == Stack().directory else _home(settings) / "data"


def _home(settings: Settings) -> Path:
    if settings.stack.directory == Stack().directory:
        return stack_folder(settings)
    return (settings.root / settings.stack.directory).resolve() / f"{settings.root.name}-{leases.key_of(settings.root)}"


def existing(path: Path) -> Path:
    """Return `path`, or the nearest folder above it that is there."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def read_record(data: Path) -> Record | None:
    """Return the record in a data folder; None when there is none.

    Raises StackFailure for one that is there and cannot be read.
    """
    path = data / RECORD
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Record(**{key: found[key] for key in Record._fields if key in found})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError) as error:
        raise StackFailure(
            f"{path} cannot be read: {error}",
            next="Run the harness as the account that made it; or run `inv stack-down` and move the data folder, with the application's database in it, away.",
        ) from error


def write_record(data: Path, record: Record) -> None:
    """Write the record, complete or not at all, for the data folder's owner alone."""
    draft = data / f"{RECORD}.new"
    owner = data.stat()
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:
            json.dump(record._asdict(), stream)
        if os.geteuid() == 0:
            os.chown(draft, owner.st_uid, owner.st_gid)
        draft.replace(data / RECORD)
    except OSError as error:
        raise StackFailure(f"{data / RECORD} cannot be written: {error.strerror}", next="Make room on its disk.") from error


def prepare(settings: Settings) -> Path:
    """Make the folders above the data folder, sweep what a killed bootstrap left, and return the data folder's path."""
    home = _home(settings)
    try:
        for folder in (stack_folder(settings), home):
            folder.mkdir(parents=True, exist_ok=True)
            if folder.stat().st_uid == os.geteuid():
                folder.chmod(0o711)  # ours: the server's account passes, nobody lists
    except OSError as error:
        raise StackFailure(f"{home} cannot be made: {error.strerror}", next="Mend the rights of the folder above it.") from error
    for left in home.glob("making-*"):
        _remove(left)
    data = find(settings)
    link = link_of(settings.root)
    if data != Path(os.path.realpath(link)):
        link.unlink(missing_ok=True)
        link.symlink_to(data)
    if data.is_dir() and read_record(data) is None and any(data.iterdir()):
        raise StackFailure(f"{str(data)!r} is not a data folder of this harness", next=f"Move it away, then run {BOOTSTRAP}.")
    return data


def is_copy(settings: Settings, record: Record) -> bool:
    """Say whether the data was copied along from another worktree, which is still there: the data is that one's."""
    there = Path(record.worktree)
    return record.worktree != str(settings.root) and there.is_dir() and not there.samefile(settings.root)


def moved_from(settings: Settings, record: Record) -> Path | None:
    """Return the former place of a moved worktree, None where the record is of this place."""
    there = Path(record.worktree)
    return None if there == settings.root or there.is_dir() else there


def set_aside(data: Path) -> Path:
    """Move a copied data folder out of the way, nothing in it lost, and return its new name."""
    number = 1
    while (aside := data.with_name(f"copied-{number}")).exists():
        number += 1
    data.rename(aside)
    return aside


def system_identifier(data: Path) -> str:
    """Return the identity of a data folder; the first eight bytes of pg_control in every version."""
    import sys

    with (data / "global/pg_control").open("rb") as stream:
        return str(int.from_bytes(stream.read(8), sys.byteorder))


def make(data: Path, server: Server, account: Account, record: Record, *, lock: int) -> Record:
    """Make the data folder beside its place, complete with `record`, and move it there in one step.

    initdb holds `lock` too: where we are killed it goes on, and no other bootstrap may sweep what it still writes.

    Raises StackFailure, with nothing left behind, when that cannot be done.
    """
    import tempfile

    making = Path(tempfile.mkdtemp(prefix="making-", dir=data.parent))
    try:
        _initialise(making, server, account, record, lock)
        complete = record._replace(system_identifier=system_identifier(making / "data"))
        write_record(making / "data", complete)
        if data.is_dir():
            data.rmdir()  # empty, as `prepare` saw
        (making / "data").rename(data)
    except OSError as error:
        raise StackFailure(f"{str(data)!r} cannot be made: {error.strerror}", next="Mend it and run the command again.") from error
    finally:
        _remove(making)
    return complete


def _initialise(making: Path, server: Server, account: Account, record: Record, lock: int) -> None:
    password = making / "password"
    password.touch(0o600)
    password.write_text(record.passwords[record.superuser] + "\n", encoding="utf-8")
    if account.user is not None and account.group is not None:
        for path in (making, password):
            os.chown(path, account.user, account.group)
    checksums = ["--no-data-checksums"] if server.major >= 18 else []  # noqa: PLR2004  # on by default since 18, and of no use here
    argv = [*account.prefix, str(server.programs / "initdb"), "-D", str(making / "data"), "--no-sync", "--no-clean", *checksums]
    argv += ["--auth=scram-sha-256", f"--username={record.superuser}", f"--pwfile={password}", *locale_options()]
    done = process.run(argv, env=child_environment(), cwd=Path("/"), timeout=300, user=account.user, group=account.group, pass_fds=[lock])
    if done.returncode:
        raise StackFailure(
            f"initdb failed: {_reason(done.stderr, making)}", next="Mend that and run the command again; nothing was left behind."
        )


def locale_options() -> list[str]:
    """Return what makes a cluster sort and read text alike on every machine, whatever the shell's locale."""
    import locale

    kept = locale.setlocale(locale.LC_CTYPE)
    ctype = "C"
    with contextlib.suppress(locale.Error):
        ctype = locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    locale.setlocale(locale.LC_CTYPE, kept)
    others = [f"--lc-{part}=C" for part in ("collate", "messages", "monetary", "numeric", "time")]
    return ["--encoding=UTF8", f"--lc-ctype={ctype}", *others]


def _reason(stderr: str, making: Path) -> str:
    if shutil.disk_usage(making).free < _NO_SPACE:
        return f"{making.parent}: No space left on device"  # initdb itself may only tell what came of it
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    for sign in ("No space left", "PANIC:", "FATAL:", "error:"):
        for line in lines:
            if sign in line:
                return line
    return lines[-1] if lines else "it says nothing"


def adopt_owner(data: Path, account: Account) -> None:
    """Give the data folder to the account that will run it; only root can need this, after a worktree was moved."""
    if data.stat().st_uid == account.owner:
        return
    if os.geteuid() != 0:
        raise StackFailure(
            f"the data folder {str(data)!r} belongs to uid {data.stat().st_uid}, and this is uid {os.geteuid()}",
            next="Run the harness as the account that made it.",
        )
    group = account.group if account.group is not None else 0
    for folder, _, files in os.walk(data):
        for path in (folder, *(os.path.join(folder, name) for name in files)):  # noqa: PTH118  # thousands of files
            os.chown(path, account.owner, group, follow_symlinks=False)


def names(settings: Settings) -> Mapping[str, str]:
    """Return the login role of each database that has one of its own, by the database's role."""
    return {database.role: database.name for database in settings.databases if database.role != "maintenance"}


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
