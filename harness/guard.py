"""The first two locks on the application's database: identity and ownership. The only maker of a SafeTarget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from harness.errors import HarnessError, Refusal, StackFailure
from harness.targets import Dsn, Identity, SafeTarget

if TYPE_CHECKING:
    from harness.database import Answer, Connection, DatabaseRow, Server
    from harness.envfile import Env
    from harness.settings import Settings


class Protected(NamedTuple):
    """An application's database: its DSN, and its identity where its server would tell."""

    dsn: Dsn
    identity: Identity | None


class Proof(NamedTuple):
    """What the server said, asked once per run; every decision of this module is a function of it."""

    settings: Settings
    env: Env
    server: Server
    databases: Mapping[str, DatabaseRow]
    protected: tuple[Protected, ...]


def prove_server(server: Server, dsn: Dsn, *, expected: tuple[str, str] | None) -> None:
    """Raise unless the server may be acted on: no standby; and our own cluster where (data folder, system identifier) are expected."""
    if expected is not None and (server.data_directory, server.system_identifier) != expected:
        raise StackFailure(
            f"another server than this worktree's answers at {dsn.where}: its data folder is {server.data_directory!r}, not {expected[0]!r}",
            next="Run test/bootstrap-stack.sh, which finds a free port.",
        )
    if server.in_recovery:
        raise Refusal(f"{dsn.variable} ({dsn.where}) leads to a standby in recovery", next="Name the primary server.")


def gather(settings: Settings, env: Env, server: Server, databases: Mapping[str, DatabaseRow], say: Callable[[str], None]) -> Proof:
    """Find out whose databases the application's DSNs open, the shell's own beside test/.env's.

    An application database that cannot be asked is protected by its name, and `say` is told so.
    """
    protected = []
    for dsn in (env.dsns.get("application"), env.shell_application):
        if dsn is None:
            continue
        identity = None
        if dsn.endpoint == env.dsn("maintenance").endpoint:
            row = databases.get(dsn.name)
            identity = Identity(server.system_identifier, row.oid) if row else None
        else:
            answer = _ask(dsn)
            identity = answer.identity if answer else None
            if identity is None:
                say(f"{dsn} cannot be asked whose it is; any database named {dsn.name!r} is taken for the application's")
        protected.append(Protected(dsn, identity))
    return Proof(settings, env, server, databases, tuple(protected))


def _ask(dsn: Dsn) -> Answer | None:
    from harness.database import identify

    try:
        return identify(dsn)
    except HarnessError:
        return None


def prove(proof: Proof, role: str, *, adopt: str = "") -> SafeTarget:
    """Return the target of `role`, proven to be this worktree's own test database or absent.

    `adopt` names an unstamped or foreign database that may be taken over. Raises Refusal naming both variables where
    two lead to one database, and for maintenance and template databases and for a foreign or missing stamp.
    """
    dsn = proof.env.dsn(role)
    _prove_same_server(proof, dsn)
    row = proof.databases.get(dsn.name)
    identity = Identity(proof.server.system_identifier, row.oid) if row else None
    for protected in proof.protected:
        same_name = protected.identity is None and dsn.name == protected.dsn.name
        if (identity is not None and identity == protected.identity) or same_name:
            raise _one_database(dsn, protected.dsn)
    for other_role, other in proof.env.dsns.items():
        if other_role in ("test", "e2e") and other_role != role and other.name == dsn.name:
            raise _one_database(dsn, other)
    if dsn.name in ("postgres", "template0", "template1", proof.env.dsn("maintenance").name) or (row and row.is_template):
        raise Refusal(f"{dsn.variable} names the maintenance or template database {dsn.name!r}", next=_DEDICATED.format(dsn.variable))
    stamp = row.stamp if row else None
    ours = stamp is not None and (stamp.role, stamp.worktree) == (role, str(proof.settings.root))
    if row is not None and not ours and adopt != dsn.name:
        whose = f"belongs to worktree {stamp.worktree!r} as its {stamp.role} database" if stamp else "carries no stamp of the harness"
        raise Refusal(
            f"database {dsn.name!r} ({dsn.variable}) exists and {whose}",
            next=f"If nothing in it is needed, run `inv reset --adopt {dsn.name}`, which lists what is in it first; else name another database.",
        )
    return SafeTarget(role, dsn, row.oid if row else None, stamp if ours else None)


_DEDICATED = "Set {} in test/.env to a database that is used for nothing else."


def _one_database(dsn: Dsn, other: Dsn) -> Refusal:
    return Refusal(
        f"{dsn.variable} ({dsn.where}) and {other.variable} ({other.where}) are the same database {dsn.name!r}",
        next=_DEDICATED.format(dsn.variable),
    )


def _prove_same_server(proof: Proof, dsn: Dsn) -> None:
    """Raise unless `dsn` leads to the maintenance DSN's server, asked of the server where it is spelled another way."""
    maintenance = proof.env.dsn("maintenance")
    if dsn.endpoint == maintenance.endpoint:
        return
    found = _ask(dsn) or _ask(dsn.at(maintenance.name))
    if found is None:
        raise Refusal(
            f"{dsn.variable} ({dsn.where}) is spelled another way than {maintenance.variable} ({maintenance.where}), and its server does not let it in",
            next=f"Write {dsn.variable}'s host and port as in {maintenance.variable}.",
        )
    if found.in_recovery:
        raise Refusal(f"{dsn.variable} ({dsn.where}) leads to a standby in recovery", next="Name the primary server.")
    if found.identity.system_identifier != proof.server.system_identifier:
        raise Refusal(
            f"{dsn.variable} ({dsn.where}) and {maintenance.variable} ({maintenance.where}) lead to different servers",
            next="Write both for one server.",
        )


def prove_rights(proof: Proof, target: SafeTarget, connection: Connection) -> None:
    """Raise Refusal, naming the grant that mends it, unless the maintenance role may drop and make `target`'s database."""
    from harness.database import may_become, quoted

    server, owner = proof.server, target.dsn.user
    row = proof.databases.get(target.dsn.name)
    role = quoted(server.role)
    if not server.superuser and not server.createdb:
        raise Refusal(f"role {server.role!r} may not create databases", next=f"As a superuser: ALTER ROLE {role} CREATEDB.")
    if row is not None and not row.may_own:
        raise Refusal(
            f"database {row.name!r} belongs to {row.owner!r}, not to {server.role!r}",
            next=f"As a superuser: ALTER DATABASE {quoted(row.name)} OWNER TO {quoted(owner)}.",
        )
    member = may_become(connection, owner)
    if member is None:
        raise Refusal(
            f"{target.dsn.variable} names the role {owner!r}, which does not exist",
            next=f"As a superuser: CREATE ROLE {quoted(owner)} LOGIN.",
        )
    if not member:
        raise Refusal(
            f"role {server.role!r} may not make a database for {owner!r}", next=f"As a superuser: GRANT {quoted(owner)} TO {role}."
        )
