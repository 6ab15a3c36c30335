"""Watches a database over a run, and says after each package what it left there."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from harness import database, inventory
from harness.definitions import definitions as defined
from harness.errors import HarnessError
from harness.inventory import Content, Outside, Position, Relation, Session
from harness.residue import (
    LeftLock,
    LeftSession,
    LeftTransaction,
    Residue,
    SequenceMove,
    TableChange,
    is_outliving,
    object_changes,
    setting_changes,
    summary,
    unlike,
)
from harness.targets import Dsn

if TYPE_CHECKING:
    from harness.database import Connection

CLOSING = 0.1
"""Seconds that the sessions of a package that has ended get to close."""
EXACT_COUNTERS = 150000
"""Before PostgreSQL 15 counters arrive late: everything is looked at."""


class _State(NamedTuple):
    """What a look found, to compare the next one with."""

    position: Position
    relations: dict[str, Relation]
    sequences: dict[str, int]
    contents: dict[str, Content]
    definitions: dict[tuple[str, str], int]
    outside: Outside
    sessions: frozenset[tuple[int, str, str]]
    open: tuple[Session, ...] = ()


class Watch:
    """Watches one database over a run: `begin` once it is pristine, `look` after each package.

    No session of ours stays open on it in between: packages may count sessions, and drop or clone the database. `dsn` should be
    of a role that reads everything, `role` is the packages' own; a `shared` server has other users than this worktree. A reset
    `clears` the databases that the role made. What lies outside the database is asked over `connection`, a session on another one
    that has been at work before.
    """

    def __init__(self, dsn: Dsn, role: str, connection: Connection, *, shared: bool, clears: bool = False) -> None:
        self._dsn, self._role, self._connection, self._shared = dsn, role, connection, shared
        self._cleared = role if clears else None
        self._state: _State | None = None
        self._pristine: _State | None = None
        self._expected: tuple[Position, dict[str, Relation]] | None = None

    def begin(self) -> None:
        """Remember everything as it is now."""
        sessions = frozenset(map(_key, inventory.sessions(self._connection, self._dsn.name)))
        here, locked = inventory.position(self._connection, self._dsn.name, None)
        with self._session() as connection:
            locked, relations = inventory.with_tables(connection, locked), inventory.relations(connection)
            readable = [one for one in relations if one.is_readable and one.oid not in locked]
            contents = inventory.contents(connection, _own(readable), here.xmin)
            sequences = inventory.sequence_values(connection, _sequences(readable))
            self._state = _State(
                position=here,
                relations=_by_name(relations, read=sequences),
                sequences=sequences,
                contents={name: content for name, (content, _) in contents.items()},
                definitions=defined(connection),
                outside=self._outside(),
                sessions=sessions,
            )
        self._pristine = self._state

    def expect(self, name: str) -> None:
        """Look at the database `name`, cloned from the same source as the first one: it is about to take that one's name."""
        here, _ = inventory.position(self._connection, name, None)
        with self._session(self._dsn.at(name)) as connection:
            relations = inventory.relations(connection)
        self._expected = (here, _by_name(relations, read=()))

    def renew(self) -> None:
        """Begin again on the database that was expected, which nobody has used; what lies outside it is as it was left."""
        if self._pristine is None or self._expected is None:
            self.begin()
            return
        (here, relations), self._expected = self._expected, None
        left = (self._state or self._pristine).outside
        settings = {name: value for name, value in left.settings.items() if is_outliving(name)}
        settings |= {name: value for name, value in self._pristine.outside.settings.items() if not is_outliving(name)}
        outside = left._replace(settings=settings, locks={}, prepared={})
        self._state = self._pristine._replace(position=here, relations=relations, outside=outside, sessions=frozenset())

    def stamped(self) -> None:
        """Take note that the database has its stamp again."""
        if self._state:
            self._state.outside.settings[inventory.COMMENT] = inventory.STAMP

    def look(self) -> Residue | None:
        """Return what differs from the last time, None for nothing at all; the next look compares with this one.

        Never raises what a server says: a database that cannot be looked at is a finding about the package.
        """
        try:
            if self._state is None:
                self.begin()
                return None
            before, self._state = self._state, None
            sessions = self._settled_sessions(before.sessions)
            outside = self._outside()
            here, locked = inventory.position(self._connection, self._dsn.name, before.position.xmin)
            with self._session() as connection:
                now = before._replace(position=here, outside=outside, sessions=frozenset(map(_key, sessions)), open=tuple(sessions))
                state, tables = _compare(connection, before, now, inventory.with_tables(connection, locked))
                sequences = _sequence_moves(connection, before, state)
        except (HarnessError, database.Error) as error:
            text = error.message if isinstance(error, HarnessError) else " ".join(str(error).split())
            return Residue(f"it cannot be looked at: {text}", unseen=text)
        self._state = state
        residue = _residue(before, state, tables, sequences, self._cleared)
        return residue._replace(summary=summary(residue)) if any(residue) else None

    def _session(self, dsn: Dsn | None = None) -> Connection:
        connection = database.connect(dsn or self._dsn, purpose="residue")
        connection.execute(inventory.STABLE.encode())
        return connection

    def _outside(self) -> Outside:
        return inventory.outside(self._connection, self._dsn.name, self._role, shared=self._shared)

    def _settled_sessions(self, known: frozenset[tuple[int, str, str]]) -> list[Session]:
        """Return the sessions once those of a package that has just ended are closed, or its time to do so is over."""
        old = {(pid, since) for pid, since, _ in known}
        deadline = time.monotonic() + CLOSING
        while True:
            found = inventory.sessions(self._connection, self._dsn.name)
            if all((one.pid, one.since) in old for one in found) or time.monotonic() > deadline:
                return found
            time.sleep(0.001)


def _key(session: Session) -> tuple[int, str, str]:
    return session.pid, session.since, session.changed


def _own(relations: Iterable[Relation]) -> list[Relation]:
    return [one for one in relations if one.is_own and one.kind != "S"]


def _sequences(relations: Iterable[Relation]) -> list[Relation]:
    return [one for one in relations if one.kind == "S"]


def _by_name(relations: Iterable[Relation], *, read: Collection[str]) -> dict[str, Relation]:
    # Our own reading of a sequence counts once this session is over.
    return {one.name: one._replace(reads=one.reads + 1) if one.name in read else one for one in relations}


def _compare(connection: Connection, before: _State, now: _State, locked: set[int]) -> tuple[_State, list[TableChange]]:
    """Return what is there `now`, and the tables whose rows differ; what nobody wrote to is not read again."""
    here, found = now.position, inventory.relations(connection)
    # A session that is still open has not told all it did: everything is a candidate then.
    is_blind = (
        bool(now.sessions - before.sessions)
        or here.statistics_since != before.position.statistics_since
        or connection.info.server_version < EXACT_COUNTERS
    )
    touched = [one for one in found if is_blind or before.relations.get(one.name) != one]
    used = [one for one in _sequences(touched) if one.is_readable and one.oid not in locked]
    sequences = inventory.sequence_values(connection, used)
    state = now._replace(relations=_by_name(found, read=sequences), sequences={**before.sequences, **sequences})
    if here.nothing_committed:
        return state, []
    # To describe a view or an index the server waits for the lock on its table, as a reader of the table does: that is for
    # the next look then, as if this one had not been.
    late = [one for one in touched if one.oid in locked or (locked and not one.is_own)]
    if late:
        kept = {one.name: before.relations[one.name] for one in late if one.name in before.relations}
        oldest = here._replace(xmin=min(here.xmin, before.position.xmin))
        state = state._replace(position=oldest, relations={**state.relations, **kept})
    elif any(not one.is_own for one in touched) or before.relations.keys() != state.relations.keys():
        state = state._replace(definitions=defined(connection))
    is_all_committed = here.rollbacks == before.position.rollbacks and not is_blind
    readable = [one for one in _own(touched) if one.oid not in locked]
    contents, tables = _changed_tables(connection, before, state, readable, is_all_committed=is_all_committed)
    return state._replace(contents=contents), tables


def _changed_tables(
    connection: Connection, before: _State, state: _State, touched: list[Relation], *, is_all_committed: bool
) -> tuple[dict[str, Content], list[TableChange]]:
    """Return the contents, and the tables whose rows differ: only those with newer rows, or another number, are read in full."""
    since = before.position.xmin
    redefined = {key[1] for key in unlike(before.definitions, state.definitions)}
    suspects = [one for one in touched if one.is_readable]
    if not is_all_committed:
        counts = inventory.newer_rows(connection, suspects, since)
        old = {one.name: before.contents.get(one.name) for one in suspects}
        suspects = [one for one in suspects if not (was := old[one.name]) or counts[one.name] != (was.rows, 0) or one.name in redefined]
    found = inventory.contents(connection, suspects, since)
    contents = {name: content for name, content in before.contents.items() if name in state.relations}
    changed, changes = [], []
    for one in suspects:
        content, written = found[one.name]
        contents[one.name] = content
        was = before.contents.get(one.name, Content(0, 0))
        is_redefined_only = one.name in redefined and (content.rows, written) == (was.rows, 0)
        if content != was and not is_redefined_only:
            changed.append(one)
            changes.append(TableChange(one.name, was.rows, content.rows, written))
    shown = inventory.samples(connection, changed, since)
    changes = [change._replace(rows=shown[change.name]) for change in changes]
    unreadable = [one for one in touched if not one.is_readable and one.name in before.relations]
    work = {one.name: _work(one) - _work(before.relations[one.name]) for one in unreadable}
    return contents, changes + [TableChange(name, None, None, written) for name, written in work.items() if written]


def _work(relation: Relation) -> int:
    return relation.inserted + relation.updated + relation.deleted


def _sequence_moves(connection: Connection, before: _State, state: _State) -> list[SequenceMove]:
    inserted = {}
    for name, one in state.relations.items():
        inserted[one.oid] = one.inserted - (before.relations[name].inserted if name in before.relations else 0)
    moves = []
    for name in unlike(before.sequences, state.sequences):
        if name in before.sequences and name in state.relations:
            old, value = before.sequences[name], state.sequences[name]
            step, inserts = inventory.insertions_into(connection, state.relations[name].oid, inserted)
            moves.append(SequenceMove(name, old, value, 0 < (value - old) / step <= inserts))
    return moves


def _residue(before: _State, state: _State, tables: list[TableChange], sequences: list[SequenceMove], cleared: str | None) -> Residue:
    one, two = before.outside, state.outside
    objects = object_changes(before.definitions, state.definitions)
    objects += object_changes(_of_kind("role", one.roles), _of_kind("role", two.roles), outlives=True)
    for is_cleared in (False, True):
        databases = ({name: owner for name, owner in at.databases.items() if (owner == cleared) == is_cleared} for at in (one, two))
        objects += object_changes(*(_of_kind("database", found) for found in databases), outlives=not is_cleared)
    old = {(pid, since) for pid, since, _ in before.sessions}
    return Residue(
        tables=tuple(tables),
        sequences=tuple(sequences),
        objects=tuple(objects),
        settings=tuple(setting_changes(one.settings, two.settings)),
        sessions=tuple(
            LeftSession(left.pid, left.user, left.application, left.state, round(left.age, 3))
            for left in state.open
            if (left.pid, left.since) not in old
        ),
        locks=tuple(LeftLock(*key) for key in two.locks if key not in one.locks),
        transactions=tuple(LeftTransaction(*pair) for pair in two.prepared.items() if pair[0] not in one.prepared),
    )


def _of_kind(kind: str, values: Mapping[str, str]) -> dict[tuple[str, str], str]:
    return {(kind, name): value for name, value in values.items()}
