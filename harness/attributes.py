"""What a clone loses: rights on the database, its connection limit, and settings of the database and of roles in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from harness.database import literal, quoted

if TYPE_CHECKING:
    from harness.database import Connection

LIST_SETTINGS = {"search_path", "temp_tablespaces", "local_preload_libraries", "session_preload_libraries"}
"""Settings that PostgreSQL stores as a quoted list: each item has to be quoted on its own."""


class Grant(NamedTuple):
    """One right on a database; grantee "" is PUBLIC, and None the database's owner."""

    grantee: str | None
    privilege: str
    grantable: bool


class Attributes(NamedTuple):
    """The rights, settings and connection limit of one database; settings by (role, name), role "" being every role, in stored order."""

    grants: frozenset[Grant]
    settings: tuple[tuple[tuple[str, str], str], ...]
    connection_limit: int


_OWNER, _PUBLIC = ("CREATE", "TEMPORARY", "CONNECT"), ("TEMPORARY", "CONNECT")
PLAIN = Attributes(frozenset([Grant(None, right, False) for right in _OWNER] + [Grant("", right, False) for right in _PUBLIC]), (), -1)
"""What CREATE DATABASE gives, a clone too."""


def capture(connection: Connection, names: Sequence[str]) -> dict[str, Attributes]:
    """Return the attributes of the databases by name; absent ones are left out."""
    grants: dict[str, set[Grant]] = {}
    settings: dict[str, dict[tuple[str, str], str]] = {}
    limits: dict[str, int] = {}
    rows = connection.execute(
        """SELECT d.datname::text, 'limit', NULL, d.datconnlimit::text, false FROM pg_database d WHERE d.datname = ANY(%(names)s)
           UNION ALL
           SELECT d.datname::text, 'grant',
                  CASE WHEN a.grantee = d.datdba THEN NULL WHEN a.grantee = 0 THEN '' ELSE pg_get_userbyid(a.grantee)::text END,
                  a.privilege_type, a.is_grantable
           FROM pg_database d, aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) a WHERE d.datname = ANY(%(names)s)
           UNION ALL
           SELECT d.datname::text, 'setting', CASE WHEN s.setrole = 0 THEN '' ELSE pg_get_userbyid(s.setrole)::text END, c, false
           FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase, unnest(s.setconfig) c WHERE d.datname = ANY(%(names)s)""",
        {"names": list(names)},
    )
    for name, kind, role, text, grantable in rows:
        if kind == "limit":
            limits[name], grants[name], settings[name] = int(text), set(), {}
        elif kind == "grant":
            grants[name].add(Grant(role, text, grantable))
        else:
            key, _, value = text.partition("=")
            settings[name][role, key] = value
    return {name: Attributes(frozenset(grants[name]), tuple(settings[name].items()), limit) for name, limit in limits.items()}


def restoring(name: str, owner: str, *, now: Attributes, wanted: Attributes) -> list[str]:
    """Return the statements that give the database `name` of `owner` the wanted attributes, in place of those it has now."""
    database = quoted(name)
    statements = []
    if now.grants != wanted.grants:
        grantees = {grant.grantee for grant in now.grants}
        statements += [
            f"REVOKE ALL ON DATABASE {database} FROM {_grantee(grantee, owner)} CASCADE" for grantee in sorted(grantees, key=str)
        ]
        for grant in sorted(wanted.grants, key=str):
            option = " WITH GRANT OPTION" if grant.grantable and grant.grantee is not None else ""
            statements.append(f"GRANT {grant.privilege} ON DATABASE {database} TO {_grantee(grant.grantee, owner)}{option}")
    have, want = dict(now.settings), dict(wanted.settings)
    for role, key in sorted(have.keys() - want.keys()):
        statements.append(f"{_settable(role, database)} RESET {_parameter(key)}")
    for (role, key), value in want.items():
        if have.get((role, key)) != value:
            statements.append(f"{_settable(role, database)} SET {_parameter(key)} TO {_value(key, value)}")
    if now.connection_limit != wanted.connection_limit:
        statements.append(f"ALTER DATABASE {database} CONNECTION LIMIT {wanted.connection_limit}")
    return statements


def merged(built: Attributes, *, literal_name: Attributes, base: Attributes) -> Attributes:
    """Return `built` with what was done to the database under its literal name, where that had `base` before."""
    grants = (built.grants | (literal_name.grants - base.grants)) - (base.grants - literal_name.grants)
    before, after = dict(base.settings), dict(literal_name.settings)
    settings = {key: value for key, value in built.settings if key in after or key not in before}
    settings |= {key: value for key, value in after.items() if before.get(key) != value}
    limit = built.connection_limit if literal_name.connection_limit == base.connection_limit else literal_name.connection_limit
    return Attributes(grants, tuple(settings.items()), limit)


def _grantee(grantee: str | None, owner: str) -> str:
    return quoted(owner) if grantee is None else quoted(grantee) if grantee else "PUBLIC"


def _settable(role: str, database: str) -> str:
    return f"ALTER ROLE {quoted(role)} IN DATABASE {database}" if role else f"ALTER DATABASE {database}"


def _parameter(key: str) -> str:
    return ".".join(quoted(part) for part in key.split("."))


def _value(key: str, value: str) -> str:
    if key.lower() not in LIST_SETTINGS:
        return literal(value)
    return ", ".join(literal(item) for item in split_list(value)) or "''"


def split_list(value: str) -> list[str]:
    """Split PostgreSQL's stored form of a list setting: items parted by commas, double-quoted where need be."""
    items, item, inside, i = [], "", False, 0
    while i < len(value):
        character = value[i]
        if character == '"' and inside and value[i + 1 : i + 2] == '"':
            item += '"'
            i += 1
        elif character == '"':
            inside = not inside
        elif character == "," and not inside:
            items.append(item)
            item = ""
        elif inside or not character.isspace():
            item += character
        i += 1
    return [*items, item] if item or items else []
