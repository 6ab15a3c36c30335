"""What a database holds, asked so that two answers can be compared: counters, contents, definitions, and what stands outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.database import literal
from harness.targets import is_derived, read_stamp

if TYPE_CHECKING:
    from harness.database import Connection

FIRST_OF_ITS_OWN = 16384
"""Objects with a lower oid are initdb's; large objects' data is the one system table that tests write to."""
LARGE_OBJECTS = 2613
SAMPLE = 3
"""Rows shown of a table that changed, each cut at 200 characters."""
HASHES_RECORDS = 140000
"""From PostgreSQL 14 on records have a hash."""
_EXACT = "16, 17, 18, 19, 20, 21, 23, 25, 26, 1043, 1082, 1114, 1184, 2950"
"""Types whose equality is identity, so that their own hash can replace the text's: numbers without a scale, times without a zone of their own, text, uuid."""
COMMENT = "comment of this database"
STAMP = "the stamp"
"""What stands for it in what is compared: one stamp is as good as another."""
MAX_TRANSACTIONS = 20_000
"""Up to so many transactions are asked one by one whether they were rolled back."""
STABLE = """SET search_path = pg_catalog; SET timezone = 'UTC'; SET datestyle = 'ISO, YMD'; SET intervalstyle = 'postgres';
    SET extra_float_digits = 1; SET bytea_output = 'hex'; SET lc_monetary = 'C'; SET xmloption = 'content'; SET row_security = off;
    SET jit = off; SET max_parallel_workers_per_gather = 0; SET lock_timeout = '2s'"""
"""One text for one value, whatever a package set for the database; no waiting for a lock that it left."""


class Position(NamedTuple):
    """A moment in the server's history: the oldest transaction that was not over, when the statistics began, and the rollbacks since."""

    xmin: int
    statistics_since: str
    rollbacks: int
    nothing_committed: bool


class Relation(NamedTuple):
    """A table, materialised view or sequence, with its counters: rolled-back work counts too.

    Every use of a sequence, each reading too, is one of its `reads`; a table has none.
    """

    oid: int
    name: str
    kind: str
    is_readable: bool
    file: int
    inserted: int
    updated: int
    deleted: int
    reads: int

    @property
    def is_own(self) -> bool:
        """Whether its rows are the project's, not the server's catalogue."""
        return self.oid >= FIRST_OF_ITS_OWN or self.oid == LARGE_OBJECTS


class Content(NamedTuple):
    """A table's rows in two numbers: how many, and the sum of their hashes."""

    rows: int
    hash: int


class Session(NamedTuple):
    """A client's session; `since` and `changed` tell it from a later one of the same pid, and whether it did anything."""

    pid: int
    user: str
    application: str
    state: str
    age: float
    since: str
    changed: str


class Outside(NamedTuple):
    """What belongs to the cluster, or to sessions, beside a database's own content."""

    roles: dict[str, str]
    databases: dict[str, str]
    settings: dict[str, str]
    locks: dict[tuple[str, int], str]
    prepared: dict[str, str]


def rows_of(connection: Connection, text: str) -> list[list[tuple[Any, ...]]]:
    """Send several SELECTs as one string and return the rows of each: one round trip."""
    cursor = connection.execute(text.encode())
    found = [cursor.fetchall()]
    while cursor.nextset():
        found.append(cursor.fetchall())
    return found


# The functions behind the server's views: a view costs a session more, the first time, than what it shows.
_CLIENT = "(backend_type = 'client backend' OR backend_type IS NULL AND usesysid IS NOT NULL)"


def sessions(connection: Connection, name: str) -> list[Session]:
    """Return the clients' sessions on the database `name`, asked from another one."""
    rows = connection.execute(
        f"""SELECT pid, pg_get_userbyid(usesysid)::text, application_name, coalesce(state, 'unknown'),
                   extract(epoch FROM clock_timestamp() - backend_start)::float8, backend_start::text, coalesce(state_change::text, '')
            FROM pg_stat_get_activity(NULL) WHERE datid = (SELECT oid FROM pg_database WHERE datname = {literal(name)}) AND {_CLIENT}
            ORDER BY backend_start, pid""".encode()
    )
    return [Session(*row) for row in rows]


def position(connection: Connection, name: str, since: int | None) -> tuple[Position, set[int]]:
    """Return where the server's history stands, and the relations of the database `name` that a session keeps locked, asked from another one.

    With `since`, a position's xmin, also whether every transaction from there on was rolled back.
    """
    # A snapshot's xmax is above every transaction that is over; those at work above it stand at the next look's xmin.
    status = "false"
    if since is not None:
        status = f"""CASE WHEN pg_snapshot_xmax(s)::text::bigint - {since} <= {MAX_TRANSACTIONS} THEN
            (SELECT coalesce(bool_and(coalesce(pg_xact_status(x::text::xid8) = 'aborted', false)), true)
             FROM generate_series({since}, pg_snapshot_xmax(s)::text::bigint - 1) x) ELSE false END"""
    (here,), locked = rows_of(
        connection,
        f"""SELECT pg_snapshot_xmin(s)::text::bigint, coalesce(pg_stat_get_db_stat_reset_time(d.oid)::text, ''),
                   coalesce(pg_stat_get_db_xact_rollback(d.oid), 0), {status}
            FROM pg_current_snapshot() s LEFT JOIN pg_database d ON d.datname = {literal(name)};
            SELECT l.relation::bigint FROM pg_lock_status() l JOIN pg_database d ON d.oid = l.database
            WHERE d.datname = {literal(name)} AND l.mode = 'AccessExclusiveLock' AND l.relation IS NOT NULL""",
    )
    return Position(*here), {row[0] for row in locked}


def relations(connection: Connection) -> list[Relation]:
    """Return every table, materialised view and sequence with its counters, by name."""
    rows = connection.execute(b"""
        SELECT c.oid::bigint, format('%I.%I', n.nspname, c.relname), c.relkind::text,
               c.relispopulated AND (current_setting('is_superuser')::boolean OR has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
                   AND NOT (c.relrowsecurity AND row_security_active(c.oid))),
               c.relfilenode::bigint, pg_stat_get_tuples_inserted(c.oid), pg_stat_get_tuples_updated(c.oid),
               pg_stat_get_tuples_deleted(c.oid), CASE c.relkind WHEN 'S' THEN pg_stat_get_blocks_fetched(c.oid) ELSE 0 END
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'm', 'S') AND c.relpersistence <> 't' AND NOT c.relisshared AND c.relname <> 'pg_statistic' ORDER BY 2""")
    return [Relation(*row) for row in rows]


def with_tables(connection: Connection, locked: set[int]) -> set[int]:
    """Return the relations, and of the indexes among them the tables."""
    if not locked:
        return locked
    oids = ", ".join(map(str, locked))
    rows = connection.execute(f"SELECT indrelid::bigint FROM pg_index WHERE indexrelid IN ({oids})".encode())
    return locked | {row[0] for row in rows}


def sequence_values(connection: Connection, sequences: Sequence[Relation]) -> dict[str, int]:
    """Return the value that each sequence gave last, by name; for one that gave none yet, the one before its first."""
    if not sequences:
        return {}
    names = {one.oid: one.name for one in sequences}
    parts = [f"SELECT {one.oid}::bigint, last_value, is_called FROM {one.name}" for one in sequences]
    values = " UNION ALL ".join(parts)
    rows = connection.execute(
        f"""SELECT v.oid, CASE WHEN v.is_called THEN v.last_value ELSE v.last_value - s.seqincrement END::text
            FROM ({values}) AS v(oid, last_value, is_called) JOIN pg_sequence s ON s.seqrelid = v.oid""".encode()
    )
    return {names[oid]: int(value) for oid, value in rows}


def insertions_into(connection: Connection, sequence: int, counters: dict[int, int]) -> tuple[int, int]:
    """Return the sequence's step, and how many rows were inserted into the tables that draw on it, by `counters`."""
    rows = connection.execute(
        f"""WITH RECURSIVE users(oid) AS (
                SELECT refobjid FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = {sequence} AND refclassid = 'pg_class'::regclass
                UNION SELECT a.adrelid FROM pg_depend d JOIN pg_attrdef a ON a.oid = d.objid
                      WHERE d.classid = 'pg_attrdef'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = {sequence}
                UNION SELECT i.inhrelid FROM pg_inherits i JOIN users u ON u.oid = i.inhparent)
            SELECT (SELECT seqincrement FROM pg_sequence WHERE seqrelid = {sequence}), oid::bigint FROM users""".encode()
    ).fetchall()
    return (rows[0][0] if rows else 1), sum(counters.get(oid, 0) for _, oid in rows)


def newer_rows(connection: Connection, tables: Sequence[Relation], since: int) -> dict[str, tuple[int, int]]:
    """Return of each table, by name, how many rows it has, and how many of them were written since the transaction `since`."""
    columns = dict.fromkeys((one.oid for one in tables), _WRITTEN.format(_newer(since)))
    return {name: (rows, written) for name, (rows, written) in _of_tables(connection, tables, columns)}


def contents(connection: Connection, tables: Sequence[Relation], since: int) -> dict[str, tuple[Content, int]]:
    """Return each table's content by name, and how many of its rows were written since the transaction `since`."""
    # A sum, since equal rows cancel out in an xor.
    digests = _digests(connection, tables)
    columns = {one.oid: f"{_WRITTEN.format(_newer(since))}, coalesce(sum({digests[one.oid]}), 0)::text" for one in tables}
    return {name: (Content(rows, int(total)), written) for name, (rows, written, total) in _of_tables(connection, tables, columns)}


def _digests(connection: Connection, tables: Sequence[Relation]) -> dict[int, str]:
    """Return for each table, by oid, the expression for a number that tells a row `t` of it from any other.

    A record's own hash is linear in those of its columns: a sum over rows would not see two of them exchange a value. The hash of
    a text, seeded with it, does.
    """
    if not tables:
        return {}
    is_exact = f"a.atttypid IN ({_EXACT}) AND coalesce(k.collisdeterministic, true)"
    # `ROW(…)::text` and not the column's: a cast from its own type may be a package's function.
    rows = connection.execute(
        f"""SELECT o.oid::bigint, format('hashtextextended(ROW(%s)::text, %s)', string_agg(name, ', ' ORDER BY number) FILTER (WHERE NOT is_exact),
                   coalesce('hash_record_extended(ROW(' || string_agg(name, ', ' ORDER BY number) FILTER (WHERE is_exact) || '), 0)', '0'))
            FROM unnest(ARRAY[{", ".join(str(one.oid) for one in tables)}]::oid[]) AS o(oid) LEFT JOIN LATERAL
                 (SELECT format('t.%I', a.attname), {is_exact if connection.info.server_version >= HASHES_RECORDS else "false"}, a.attnum
                  FROM pg_attribute a LEFT JOIN pg_collation k ON k.oid = a.attcollation
                  WHERE a.attrelid = o.oid AND a.attnum > 0 AND NOT a.attisdropped) AS c(name, is_exact, number) ON true
            GROUP BY o.oid""".encode()
    )
    return dict(rows.fetchall())


_WRITTEN = "count(*), count(*) FILTER (WHERE {})"


def _newer(since: int) -> str:
    return f"age(xmin) <= age('{since % 2**32}'::xid)"


def _of_tables(connection: Connection, tables: Sequence[Relation], columns: Mapping[int, str]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Ask for columns, given by a table's oid, of every table at once, and return them with its name."""
    names = {one.oid: one.name for one in tables}
    parts = [f"SELECT {one.oid}::bigint, {columns[one.oid]} FROM ONLY {one.name} t" for one in tables]
    for oid, *values in connection.execute(" UNION ALL ".join(parts).encode()) if parts else ():
        yield names[oid], tuple(values)


def samples(connection: Connection, tables: Sequence[Relation], since: int) -> dict[str, tuple[str, ...]]:
    """Return of each table, by name, the first rows that were written since the transaction `since`, as text."""
    found: dict[int, list[str]] = {one.oid: [] for one in tables}
    parts = [
        f"(SELECT {one.oid}::bigint, left(ROW(t.*)::text, 200) FROM ONLY {one.name} t WHERE {_newer(since)} LIMIT {SAMPLE})"
        for one in tables
    ]
    for oid, text in connection.execute(" UNION ALL ".join(parts).encode()) if parts else ():
        found[oid].append(text)
    return {one.name: tuple(found[one.oid]) for one in tables}


def outside(connection: Connection, name: str, role: str, *, shared: bool) -> Outside:
    """Return roles, databases, and the settings, advisory locks and prepared transactions of the database `name`, asked from another one.

    On a shared server only what a package with `role` could have made: others make roles and databases there too.
    """
    powerful = f"(SELECT rolsuper FROM pg_roles WHERE rolname = {literal(role)})"
    may = f"(SELECT rolsuper{{}} FROM pg_roles WHERE rolname = {literal(role)})" if shared else "true"
    roles, databases, settings, locks, prepared = rows_of(
        connection,
        f"""SELECT r.rolname::text, ROW(rolsuper, rolinherit, rolcreaterole, rolcreatedb, rolcanlogin, rolreplication, rolbypassrls, rolconnlimit,
                  rolvaliduntil, (SELECT array_agg(m.roleid::regrole::text ORDER BY 1) FROM pg_auth_members m WHERE m.member = r.oid))::text
           FROM pg_roles r WHERE {may.format(" OR rolcreaterole")};
           SELECT datname::text, pg_get_userbyid(datdba)::text FROM pg_database WHERE pg_get_userbyid(datdba) = {literal(role)} OR {may.format("")};
           SELECT concat(unnest_.key, CASE WHEN s.setrole <> 0 THEN ' of role ' || s.setrole::regrole::text END,
                         CASE WHEN s.setdatabase <> 0 THEN ' of this database' ELSE ' everywhere' END), unnest_.value
           FROM pg_db_role_setting s LEFT JOIN pg_database d ON d.oid = s.setdatabase,
                LATERAL (SELECT split_part(one, '=', 1), substr(one, strpos(one, '=') + 1) FROM unnest(s.setconfig) one) AS unnest_(key, value)
           WHERE s.setdatabase = 0 OR d.datname = {literal(name)}
           UNION ALL SELECT name || ' of the server', setting FROM pg_settings WHERE source = 'configuration file' AND {powerful}
           UNION ALL SELECT unnest(ARRAY['owner', 'rights', 'connection limit', 'comment']) || ' of this database',
                  unnest(ARRAY[pg_get_userbyid(datdba)::text, array(SELECT r::text FROM unnest(coalesce(datacl, acldefault('d', datdba))) r ORDER BY 1)::text, datconnlimit::text,
                               shobj_description(oid, 'pg_database')])
           FROM pg_database WHERE datname = {literal(name)};
           SELECT CASE l.objsubid WHEN 1 THEN (l.classid::bigint << 32 | l.objid::bigint)::text ELSE format('%s, %s', l.classid::int8, l.objid::int8) END,
                  coalesce(l.pid, 0), l.mode FROM pg_lock_status() l JOIN pg_database d ON d.oid = l.database
           WHERE l.locktype = 'advisory' AND l.granted AND d.datname = {literal(name)};
           SELECT p.gid, pg_get_userbyid(p.ownerid)::text FROM pg_prepared_xact() p JOIN pg_database d ON d.oid = p.dbid
           WHERE d.datname = {literal(name)}""",
    )
    return Outside(
        roles=dict(roles),
        databases={found: owner for found, owner in databases if not is_derived(found)},
        settings={key: STAMP if key == COMMENT and read_stamp(value) else value for key, value in settings},
        locks={(key, pid): mode for key, pid, mode in locks},
        prepared=dict(prepared),
    )
