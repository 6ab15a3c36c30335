"""What a clone loses: rights on the database, and settings of the database and of roles in it."""

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
    """The rights and settings of one database; settings by (role, name), role "" being every role."""

    grants: frozenset[Grant]
    settings: tuple[tuple[tuple[str, str], str], ...]


def capture(connection: Connection, names: Sequence[str]) -> dict[str, Attributes]:
    """Return the attributes of the databases by name; absent ones are left out."""
    grants: dict[str, set[Grant]] = {}
    rows = connection.execute(
        """SELECT d.datname::text, CASE WHEN a.grantee = d.datdba THEN NULL WHEN a.grantee = 0 THEN '' ELSE pg_get_userbyid(a.grantee)::text END,
                  a.privilege_type, a.is_grantable
           FROM pg_database d LEFT JOIN LATERAL aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) a ON true
           WHERE d.datname = ANY(%s)""",
        [list(names)],
    )
    for name, grantee, privilege, grantable in rows:
        found = grants.setdefault(name, set())
        if privilege is not None:
            found.add(Grant(grantee, privilege, grantable))
    settings: dict[str, dict[tuple[str, str], str]] = {name: {} for name in grants}
    rows = connection.execute(
        """SELECT d.datname::text, CASE WHEN s.setrole = 0 THEN '' ELSE pg_get_userbyid(s.setrole)::text END, unnest(s.setconfig)
           FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase WHERE d.datname = ANY(%s)""",
        [list(names)],
    )
    for name, role, entry in rows:
        key, _, value = entry.partition("=")
        settings[name][role, key] = value
    return {name: Attributes(frozenset(found), tuple(sorted(settings[name].items()))) for name, found in grants.items()}


def restoring(name: str, owner: str, *, now: Attributes, wanted: Attributes) -> list[str]:
    """Return the statements that give the database `name` of `owner` the wanted attributes, in place of those it has now."""
    database = quoted(name)
    statements = []
    if now.grants != wanted.grants:
        grantees = {grant.grantee for grant in now.grants}
        statements += [f"REVOKE ALL ON DATABASE {database} FROM {_grantee(grantee, owner)}" for grantee in sorted(grantees, key=str)]
        for grant in sorted(wanted.grants, key=str):
            option = " WITH GRANT OPTION" if grant.grantable and grant.grantee is not None else ""
            statements.append(f"GRANT {grant.privilege} ON DATABASE {database} TO {_grantee(grant.grantee, owner)}{option}")
    have, want = dict(now.settings), dict(wanted.settings)
    for role, key in have.keys() - want.keys():
        statements.append(f"{_settable(role, database)} RESET {quoted(key)}")
    for (role, key), value in want.items():
        if have.get((role, key)) != value:
            statements.append(f"{_settable(role, database)} SET {_parameter(key)} TO {_value(key, value)}")
    return statements


def merged(built: Attributes, *, literal_name: Attributes, base: Attributes) -> Attributes:
    """Return `built` with what was done to the database under its literal name, where that had `base` before."""
    grants = (built.grants | (literal_name.grants - base.grants)) - (base.grants - literal_name.grants)
    changed = {key: value for key, value in literal_name.settings if dict(base.settings).get(key) != value}
    return Attributes(grants, tuple(sorted({**dict(built.settings), **changed}.items())))


def _grantee(grantee: str | None, owner: str) -> str:
    return quoted(owner) if grantee is None else quoted(grantee) if grantee else "PUBLIC"


def _settable(role: str, database: str) -> str:
    return f"ALTER ROLE {quoted(role)} IN DATABASE {database}" if role else f"ALTER DATABASE {database}"


def _parameter(key: str) -> str:
    return ".".join(quoted(part) for part in key.split("."))


def _value(key: str, value: str) -> str:
    if key not in LIST_SETTINGS:
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
