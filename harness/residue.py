"""What a package left behind, as values: exactly what differs, whoever wrote it; and the line that tells it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

T = TypeVar("T")

SHOWN = 6
"""Changes named in one line; the results file has all."""
LONG = 60


class TableChange(NamedTuple):
    """A table with other rows than before; `written` of them are new or changed, and `rows` shows a few of these.

    The numbers are None for a table that may not be read: its counters then say that something was written.
    """

    name: str
    before: int | None
    after: int | None
    written: int
    rows: tuple[str, ...] = ()


class SequenceMove(NamedTuple):
    """A sequence that gives other values than before; `by_inserts` when rows were inserted (and maybe rolled back) for each."""

    name: str
    before: int
    after: int
    by_inserts: bool


class ObjectChange(NamedTuple):
    """A table, function, role, database, … that was made, changed or dropped; one that `outlives` stays after a reset."""

    kind: str
    name: str
    change: str
    outlives: bool = False


class SettingChange(NamedTuple):
    """A setting or right of the database, a role or the server; None where there is none."""

    name: str
    before: str | None
    after: str | None
    outlives: bool = False


class LeftSession(NamedTuple):
    """A session that was still open, `age` seconds old."""

    pid: int
    user: str
    application: str
    state: str
    age: float


class LeftLock(NamedTuple):
    """An advisory lock that was still held; pid 0 for a prepared transaction's."""

    key: str
    pid: int


class LeftTransaction(NamedTuple):
    """A prepared transaction that was neither committed nor rolled back."""

    gid: str
    owner: str


class Residue(NamedTuple):
    """All that a package left; `summary` is the line to print, empty when there is nothing but sequences moved by inserts.

    `unseen` says why the database could not be looked at.
    """

    summary: str = ""
    tables: tuple[TableChange, ...] = ()
    sequences: tuple[SequenceMove, ...] = ()
    objects: tuple[ObjectChange, ...] = ()
    settings: tuple[SettingChange, ...] = ()
    sessions: tuple[LeftSession, ...] = ()
    locks: tuple[LeftLock, ...] = ()
    transactions: tuple[LeftTransaction, ...] = ()
    unseen: str = ""


def unlike(before: Mapping[T, object], after: Mapping[T, object]) -> list[T]:
    """Return the keys whose values differ, or that one of the two lacks."""
    return [key for key in {**before, **after} if before.get(key) != after.get(key)]


def object_changes(
    before: Mapping[tuple[str, str], object], after: Mapping[tuple[str, str], object], *, outlives: bool = False
) -> list[ObjectChange]:
    """Return what was made, changed or dropped, by kind and name."""
    changes = []
    for kind, name in unlike(before, after):
        change = "made" if (kind, name) not in before else "changed" if (kind, name) in after else "dropped"
        changes.append(ObjectChange(kind, name, change, outlives))
    return changes


def setting_changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[SettingChange]:
    """Return the settings that differ."""
    return [SettingChange(name, before.get(name), after.get(name), is_outliving(name)) for name in unlike(before, after)]


def is_outliving(setting: str) -> bool:
    """Say whether a setting, named with what it is of, stays when its database is replaced."""
    return not setting.endswith(" of this database")


def summary(residue: Residue) -> str:
    """Return one line about what a package left, without what inserts alone did to sequences; empty for nothing."""
    if residue.unseen:
        return residue.summary
    parts = [_table(one) for one in residue.tables]
    parts += [f"sequence {one.name} moved {one.before} → {one.after}" for one in residue.sequences if not one.by_inserts]
    parts += [f"{one.kind} {one.name} {one.change}{_OUTLIVES[one.outlives]}" for one in residue.objects]
    parts += [f"setting {one.name}: {_short(one.before)} → {_short(one.after)}{_OUTLIVES[one.outlives]}" for one in residue.settings]
    parts += [
        f"session {one.pid} of {one.user} ({one.application or 'unnamed'}, {one.state}, {one.age:.1f} s old)" for one in residue.sessions
    ]
    parts += [f"prepared transaction {one.gid!r} of {one.owner}" for one in residue.transactions]
    parts += [f"advisory lock {one.key} (pid {one.pid})" if one.pid else f"advisory lock {one.key}" for one in residue.locks]
    more = [f"and {len(parts) - SHOWN} more"] if len(parts) > SHOWN else []
    return "; ".join([*parts[:SHOWN], *more])


_OUTLIVES = {True: " (outlives a reset)", False: ""}


def _table(change: TableChange) -> str:
    if change.before is None:
        return f"{change.name} ({change.written} row(s) written, perhaps rolled back: it may not be read)"
    return f"{change.name} {change.before} → {change.after} rows ({change.written} written)"


def _short(value: str | None) -> str:
    if value is None:
        return "none"
    return repr(value if len(value) <= LONG else f"{value[:LONG]}…")
