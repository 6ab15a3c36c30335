"""What stands in this worktree's own cluster: one login role per database, the application's database, nobody else's doors open."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.settings import Settings

if TYPE_CHECKING:
    from harness.database import Connection

_TEST_ROLES = ("test", "e2e")


def provision(connection: Connection, settings: Settings, passwords: Mapping[str, str], *, renew: bool, former: str) -> None:
    """Bring roles, databases and rights to what `settings` say; what is right already is not touched.

    `passwords` holds one per role name, the superuser's too; with `renew` each is set again. Test databases are made by
    the reset, and only by it. `former` is the worktree that stamped this cluster's databases before it was moved.
    """
    with connection.transaction():
        _make_roles(connection, settings, passwords, renew=renew)
    _make_databases(connection, settings)
    with connection.transaction():
        _close_doors(connection, settings)
        if former:
            _restamp(connection, settings.root, former)


def _make_roles(connection: Connection, settings: Settings, passwords: Mapping[str, str], *, renew: bool) -> None:
    from harness.database import literal, quoted

    query = """SELECT rolname::text, rolcanlogin AND NOT (rolsuper OR rolcreaterole OR rolreplication OR rolbypassrls), rolcreatedb
               FROM pg_roles WHERE rolname = ANY(%s)"""
    found = {name: rights for name, *rights in connection.execute(query, [list(passwords)])}
    wanted = {database.name: settings.stack.createdb and database.role in _TEST_ROLES for database in settings.databases}
    for name, password in passwords.items():
        is_new = name not in found
        if is_new:
            _run(connection, f"CREATE ROLE {quoted(name)}")
        if name in wanted and found.get(name) != [True, wanted[name]]:
            createdb = "CREATEDB" if wanted[name] else "NOCREATEDB"
            rights = f"LOGIN NOSUPERUSER NOCREATEROLE NOREPLICATION NOBYPASSRLS {createdb}"
            _run(connection, f"ALTER ROLE {quoted(name)} {rights}")
        if is_new or renew:
            # Packages connect as the other roles, and a driver may demand what RFC 5802 recommends.
            verifier = light_verifier(password) if name not in wanted and is_random(password) else _verifier(connection, name, password)
            _run(connection, f"ALTER ROLE {quoted(name)} PASSWORD {literal(verifier)}")


def _verifier(connection: Connection, name: str, password: str) -> str:
    """Return a password's SCRAM verifier, by libpq: the server's log never sees the password itself."""
    return connection.pgconn.encrypt_password(password.encode(), name.encode(), b"scram-sha-256").decode()


def light_verifier(password: str) -> str:
    """Return the SCRAM verifier (RFC 5802, 7677) of a random password, with one iteration.

    The usual 4,096 cost each connection 2 to 5 ms; they slow down guessing, and nobody guesses 128 random bits.
    """
    import base64
    import hashlib
    import hmac
    import secrets

    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 1)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    served = hmac.digest(salted, b"Server Key", "sha256")
    texts = [base64.b64encode(part).decode() for part in (salt, stored, served)]
    return "SCRAM-SHA-256$1:{}${}:{}".format(*texts)


def random_password() -> str:
    """Return 128 random bits as text."""
    import secrets

    return secrets.token_hex(16)


def is_random(password: str) -> bool:
    """Say whether a password looks like one of `random_password`, and not like one that somebody chose."""
    return len(password) == 32 and all(character in "0123456789abcdef" for character in password)  # noqa: PLR2004  # hex digits


def _make_databases(connection: Connection, settings: Settings) -> None:
    from harness.database import quoted

    rows = connection.execute("SELECT datname::text FROM pg_database")
    found = {name for (name,) in rows}
    clone = " STRATEGY FILE_COPY" if connection.info.server_version >= 150000 and not settings.stack.durable else ""  # noqa: PLR2004  # STRATEGY came with 15
    for database in settings.databases:
        if database.role not in _TEST_ROLES and database.name not in found:
            owner = f" OWNER {quoted(database.name)}" if database.role == "application" else ""
            _run(connection, f"CREATE DATABASE {quoted(database.name)} TEMPLATE template0{owner}{clone}")


def _close_doors(connection: Connection, settings: Settings) -> None:
    """Leave every database to its owner, the superuser, and who was let in by name."""
    from harness.database import quoted

    for name in open_to_all(connection):
        _run(connection, f"REVOKE CONNECT, TEMPORARY ON DATABASE {quoted(name)} FROM PUBLIC")
    for role in settings.test_roles:
        name = settings.database(role).name
        may = connection.execute("SELECT has_database_privilege(%s::text, 'postgres', 'CONNECT')", [name]).fetchone() == (True,)
        if may != settings.stack.createdb:
            change = "GRANT CONNECT ON DATABASE postgres TO" if settings.stack.createdb else "REVOKE CONNECT ON DATABASE postgres FROM"
            _run(connection, f"{change} {quoted(name)}")


def open_to_all(connection: Connection) -> list[str]:
    """Return the databases that every role may connect to."""
    rows = connection.execute("""
        SELECT datname::text FROM pg_database WHERE EXISTS (
            SELECT FROM aclexplode(coalesce(datacl, acldefault('d', datdba))) WHERE grantee = 0 AND privilege_type = 'CONNECT')""")
    return [name for (name,) in rows]


def _restamp(connection: Connection, root: Path, former: str) -> None:
    """Make the databases that this cluster's former place stamped those of the present one."""
    from harness.database import ask_databases, literal, quoted
    from harness.worktree import repository

    for row in ask_databases(connection).values():
        if row.stamp and row.stamp.worktree == former and not row.invalid:
            stamp = row.stamp._replace(worktree=str(root), repository=repository(root))
            _run(connection, f"COMMENT ON DATABASE {quoted(row.name)} IS {literal(stamp.text())}")


def _run(connection: Connection, statement: str) -> None:
    connection.execute(statement.encode())


def prove(connection: Connection, data: Path, identifier: str, settings: Mapping[str, str]) -> str:
    """Return what is wrong with the server that answers: another data folder's, or a setting not in force; empty when it is right."""
    names = list(settings)
    row: Any = connection.execute(
        """SELECT (SELECT system_identifier::text FROM pg_control_system()), current_setting('data_directory'),
                  current_setting('server_encoding'), (SELECT array_agg(current_setting(name)) FROM unnest(%s::text[]) AS name)""",
        [names],
    ).fetchone()
    if row[0] != identifier or not data.samefile(row[1]):
        return f"another server answers: its data folder is {row[1]!r} with system identifier {row[0]}, not {str(data)!r} with {identifier}"
    if row[2] != "UTF8":
        return f"the server's encoding is {row[2]}"
    wrong = [f"{name} is {found!r}, not {settings[name]!r}" for name, found in zip(names, row[3], strict=True) if found != settings[name]]
    return f"the server's {', '.join(wrong)}" if wrong else ""
