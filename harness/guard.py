"""The first two locks on the application's database: identity and ownership. The only maker of a SafeTarget."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from harness.database import pooled
from harness.errors import HarnessError, Refusal, StackFailure, UsageError
from harness.targets import REPLACES, Dsn, Identity, SafeTarget, Stamp, is_derived, name_beside

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
        raise _standby(dsn)


def _standby(dsn: Dsn) -> Refusal:
    return Refusal(f"{dsn.label} leads to a standby in recovery", next="Name the primary server.")


def prove_apart(env: Env) -> None:
    """Raise unless test/.env says which database is the application's, and our own sessions lead to another.

    No session of ours may be opened there but the one that asks for its identity, so this comes before any other.
    """
    maintenance = env.dsn("maintenance")
    for dsn in _applications(env):
        if dsn.name != maintenance.name:
            continue
        if dsn.endpoint == maintenance.endpoint:
            raise UsageError(_same(maintenance, dsn), next=_DEDICATED.format(maintenance.variable))
        found, asked = _ask(maintenance), _ask(dsn)
        if isinstance(found, HarnessError):
            raise found
        if isinstance(asked, HarnessError) or found.identity == asked.identity:
            raise _one_database(maintenance, dsn)


def gather(settings: Settings, env: Env, server: Server, databases: Mapping[str, DatabaseRow], say: Callable[[str], None]) -> Proof:
    """Find out whose databases the application's DSNs open, the shell's own beside test/.env's.

    An application database that cannot be asked is protected by its name, and `say` is told so.
    """
    protected = []
    for dsn in _applications(env):
        identity = None
        if dsn.endpoint == env.dsn("maintenance").endpoint:
            row = databases.get(dsn.name)
            identity = Identity(server.system_identifier, row.oid) if row else None
        else:
            answer = _ask(dsn)
            if isinstance(answer, HarnessError):
                say(
                    f"{answer.message}; it cannot be asked which one it is, so any database named {dsn.name!r} is taken for the application's"
                )
            else:
                identity = answer.identity
        protected.append(Protected(dsn, identity))
    return Proof(settings, env, server, databases, tuple(protected))


def _applications(env: Env) -> list[Dsn]:
    application = env.dsn("application")
    return [application, env.shell_application] if env.shell_application else [application]


def _ask(dsn: Dsn) -> Answer | HarnessError:
    from harness.database import identify

    try:
        return identify(dsn)
    except HarnessError as failure:
        return failure


def prove(proof: Proof, role: str, *, adopt: str = "") -> SafeTarget:
    """Return the target of `role`, proven to be this worktree's own test database or absent.

    `adopt` names an unstamped or foreign database that may be taken over. Raises Refusal naming both variables where
    two lead to one database, and for maintenance and template databases and for a foreign or missing stamp.
    """
    row = prove_identity(proof, role)
    stamp = _prove_ownership(proof, role, row, adopt=adopt) if row else None
    return SafeTarget(role, proof.env.dsn(role), row.oid if row else None, stamp)


def prove_identity(proof: Proof, role: str) -> DatabaseRow | None:
    """Return the database that the DSN of `role` opens, None where it is absent: neither the application's nor one of the server's own."""
    dsn = proof.env.dsn(role)
    row = proof.databases.get(dsn.name)
    if dsn.name in ("postgres", "template0", "template1", proof.env.dsn("maintenance").name) or (row and row.is_template):
        raise Refusal(f"{dsn.variable} names the maintenance or template database {dsn.name!r}", next=_DEDICATED.format(dsn.variable))
    if is_derived(dsn.name):
        raise Refusal(f"{dsn.variable} names {dsn.name!r}, as only the harness names its own", next=_DEDICATED.format(dsn.variable))
    found = _found_by(proof, dsn)
    identities = {Identity(proof.server.system_identifier, row.oid)} if row else set()
    if found is not None:
        identities.add(found.identity)
    for protected in proof.protected:
        same_name = protected.identity is None and dsn.name == protected.dsn.name
        if protected.identity in identities or same_name:
            raise _one_database(dsn, protected.dsn)
    if found is not None:
        _prove_found(proof, dsn, found)
    for other_role, other in proof.env.dsns.items():
        if other_role in ("test", "e2e") and other_role != role and other.name == dsn.name:
            raise _one_database(dsn, other)
    return row


def _prove_ownership(proof: Proof, role: str, row: DatabaseRow, *, adopt: str) -> Stamp | None:
    """Return the stamp that makes the database ours; None for one that is to be adopted."""
    stamp, worktree = row.stamp, str(proof.settings.root)
    if stamp is not None and (stamp.role, stamp.worktree) == (role, worktree):
        return stamp
    beside = proof.databases.get(name_beside("new", row.name))
    unfinished = beside.stamp if beside and stamp is None else None
    # A migration may comment on the database under its own name, and be killed then: the one that was to replace it knows.
    if unfinished is not None and unfinished[:1] + unfinished[2:4] == (role, worktree, f"{REPLACES}{row.oid}"):
        return unfinished
    if adopt == row.name:
        return None
    whose = f"belongs to worktree {stamp.worktree!r} as its {stamp.role} database" if stamp else "carries no stamp of the harness"
    raise Refusal(
        f"database {row.name!r} ({proof.env.dsn(role).variable}) exists and {whose}",
        next=f"If nothing in it is needed, run `inv reset --adopt {shlex.quote(row.name)}`, which lists what is in it first;"
        " else name another database.",
    )


_DEDICATED = "Set {} in test/.env to a database that is used for nothing else."


def _same(dsn: Dsn, other: Dsn) -> str:
    return f"{dsn.label} and {other.label} are the same database {other.name!r}"


def _one_database(dsn: Dsn, other: Dsn) -> Refusal:
    return Refusal(_same(dsn, other), next=_DEDICATED.format(dsn.variable))


def _found_by(proof: Proof, dsn: Dsn) -> Answer | None:
    """Return what `dsn` itself opens, or the maintenance database behind its address; None where both are the maintenance DSN's.

    Only then its server is known already: it is the one that `proof` is about.
    """
    maintenance = proof.env.dsn("maintenance")
    if dsn.endpoint == maintenance.endpoint:
        return None
    row = proof.databases.get(dsn.name)
    found = _ask(dsn if row and row.allows_connections else dsn.at(maintenance.name))
    if isinstance(found, StackFailure):
        raise found
    if isinstance(found, HarnessError):
        raise Refusal(
            f"{found.message}; it is spelled another way than {maintenance.label}, so it must be asked whether that is the same server",
            next=f"Write {dsn.variable}'s host and port as in {maintenance.variable}.",
        ) from found
    return found


def _prove_found(proof: Proof, dsn: Dsn, found: Answer) -> None:
    """Raise unless `dsn`, asked by itself, leads straight to the maintenance DSN's server and to the database that its name says there."""
    if found.pooled:
        raise pooled(dsn)
    if found.in_recovery:
        raise _standby(dsn)
    maintenance = proof.env.dsn("maintenance")
    if found.identity.system_identifier != proof.server.system_identifier:
        raise Refusal(f"{dsn.label} and {maintenance.label} lead to different servers", next="Write both for one server.")
    row = proof.databases.get(dsn.name)
    asked = row if row and row.allows_connections else proof.databases.get(maintenance.name)
    if asked is None or found.identity.oid != asked.oid:
        raise Refusal(f"{dsn.label} opens another database than its name says", next="Give it the server's own host and port.")


def prove_rights(proof: Proof, targets: Sequence[SafeTarget], connection: Connection) -> None:
    """Raise Refusal, naming the grant that mends it, unless the maintenance role may drop and make the targets' databases."""
    from harness.database import may_become

    members = may_become(connection, {target.dsn.user for target in targets}, proof.server.version)
    for target in targets:
        _prove_rights(proof, target, members.get(target.dsn.user))


def _prove_rights(proof: Proof, target: SafeTarget, member: bool | None) -> None:  # noqa: FBT001  # what may_become says of the owner
    from harness.database import quoted

    server, owner = proof.server, target.dsn.user
    row = proof.databases.get(target.dsn.name)
    role = quoted(server.role)
    if not server.superuser and not server.createdb:
        raise Refusal(f"role {server.role!r} may not create databases", next=f"As a superuser: ALTER ROLE {role} CREATEDB.")
    if member is None:
        raise Refusal(
            f"{target.dsn.variable} names the role {owner!r}, which does not exist",
            next=f"As a superuser: CREATE ROLE {quoted(owner)} LOGIN.",
        )
    if not member:
        raise Refusal(
            f"role {server.role!r} may not make a database for {owner!r}", next=f"As a superuser: GRANT {quoted(owner)} TO {role}."
        )
    if row is not None and not row.may_own:
        inherits = f"GRANT {quoted(owner)} TO {role}; ALTER ROLE {role} INHERIT"
        raise Refusal(
            f"database {row.name!r} belongs to {row.owner!r}, whose rights {server.role!r} does not have",
            next=f"As a superuser: {inherits if row.owner == owner else f'ALTER DATABASE {quoted(row.name)} OWNER TO {quoted(owner)}'}.",
        )
