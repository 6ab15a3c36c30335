"""What to do about a migration's error, told by its SQLSTATE and its statement; and which package has an extension. Pure."""

from __future__ import annotations

import re

from harness.sql import MARK

_ROLES = "Roles belong to the cluster and survive the drop of a database"
_MENTIONS_ROLE = r"(?i)\b(?:CREATE|ALTER|DROP)\s+(?:ROLE|USER|GROUP)\b"
_NAMES_ROLE = r"(?i)\b(?:(?:CREATE|ALTER|DROP)\s+(?:ROLE|USER|GROUP)|OWNER\s+TO|GRANT|REVOKE|FOR\s+ROLE|SET\s+ROLE|AUTHORIZATION)\b"
_EXTENSION = r"(?i)\bCREATE\s+EXTENSION\s+(?:IF\s+NOT\s+EXISTS\s+)?\"?([^\s\";]+)"
_WHOLE_DATABASE = r"(?i)(?:CREATE|DROP)\s+(?:DATABASE|TABLESPACE)\b"
_CONCURRENTLY = r"(?i)\bINDEX\s+CONCURRENTLY\b"

_HINTS: tuple[tuple[tuple[str, ...], str | None, str], ...] = (
    (("25001",), _WHOLE_DATABASE, "Take it out: a stream makes what is inside one database."),
    (
        ("25001", "2D000"),
        None,
        f"Put the line `{MARK}` on top of the file: it then runs statement by statement, outside a transaction block.",
    ),
    (("55P04",), None, "Use a new enum value in a later file: PostgreSQL wants the one that adds it committed first."),
    (("42710",), _MENTIONS_ROLE, f"{_ROLES}: create the role only where pg_roles lacks it, in a DO block."),
    (("2BP01",), _MENTIONS_ROLE, f"{_ROLES}, and another database still uses this one: leave it out of the migrations."),
    (
        ("42704",),
        _NAMES_ROLE,
        f"{_ROLES}: create it in an earlier file where pg_roles lacks it; for a dump use pg_dump --no-owner --no-privileges.",
    ),
    (
        ("42501",),
        None,
        'The database\'s own role lacks this right: put what takes a superuser into a stream of its own with `as = "maintenance"`.',
    ),
)

_CONTRIB = frozenset(
    [
        "adminpack",
        "amcheck",
        "autoinc",
        "bloom",
        "btree_gin",
        "btree_gist",
        "citext",
        "cube",
        "dblink",
        "dict_int",
        "dict_xsyn",
        "earthdistance",
        "file_fdw",
        "fuzzystrmatch",
        "hstore",
        "insert_username",
        "intagg",
        "intarray",
        "isn",
        "lo",
        "ltree",
        "moddatetime",
        "old_snapshot",
        "pageinspect",
        "pg_buffercache",
        "pg_freespacemap",
        "pg_prewarm",
        "pg_stat_statements",
        "pg_surgery",
        "pg_trgm",
        "pg_visibility",
        "pg_walinspect",
        "pgcrypto",
        "pgrowlocks",
        "pgstattuple",
        "postgres_fdw",
        "refint",
        "seg",
        "sslinfo",
        "tablefunc",
        "tcn",
        "tsm_system_rows",
        "tsm_system_time",
        "unaccent",
        "uuid-ossp",
        "xml2",
    ]
)
_PACKAGES = {
    "vector": "pgvector",
    "postgis": "postgis-3",
    "postgis_raster": "postgis-3",
    "postgis_topology": "postgis-3",
    "postgis_tiger_geocoder": "postgis-3",
    "pg_cron": "cron",
    "pg_partman": "partman",
    "pg_repack": "repack",
    "pgrouting": "pgrouting",
    "pgtap": "pgtap",
    "pgaudit": "pgaudit",
    "hypopg": "hypopg",
    "ip4r": "ip4r",
    "periods": "periods",
    "rum": "rum",
    "semver": "semver",
    "timescaledb": "timescaledb",
    "plpython3u": "plpython3",
    "plperl": "plperl",
    "plperlu": "plperl",
    "pltcl": "pltcl",
    "pltclu": "pltcl",
}


def missing_extension(name: str, major: int | str) -> str:
    """Return where a server that lacks the extension `name` gets it from."""
    if name in _CONTRIB:
        return f"It is one of PostgreSQL's own: install the package postgresql-contrib (Debian: postgresql-{major}) for this server."
    package = f"postgresql-{major}-{_PACKAGES.get(name, name.replace('_', '-'))}"
    doubt = "" if name in _PACKAGES else " or a like name"
    return (
        f"Install the package that has it for this server (Debian: {package}{doubt}), or choose another server in harness.toml's [stack]."
    )


def advice(sqlstate: str, statement: str, *, without_transaction: bool) -> str:
    """Return the next step for an error of a migration file."""
    extension = re.search(_EXTENSION, statement)
    if sqlstate in ("0A000", "58P01") and extension:
        return f"This server lacks the extension {extension[1]!r}. {missing_extension(extension[1], '<major>')}"
    if sqlstate == "42501" and extension:
        return f'The extension {extension[1]!r} takes a superuser: put it into a stream of its own with `as = "maintenance"`.'
    if re.search(_CONCURRENTLY, statement) and without_transaction:
        return "Drop the invalid index that it left where this database is kept, mend the file and run the command again."
    known = _known(sqlstate, statement)
    if known:
        return known
    kept = (
        " What its earlier statements did is kept where this database is kept: write them so that they can run again."
        if without_transaction
        else ""
    )
    return f"Mend the file and run the command again.{kept}"


def _known(sqlstate: str, statement: str) -> str:
    for states, concerned, advice_for_it in _HINTS:
        if sqlstate in states and (concerned is None or re.search(concerned, statement)):
            return advice_for_it
    return ""
