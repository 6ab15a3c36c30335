"""What is done around each package of a run: a pristine database where one is asked for, and a look at what was left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from harness import database, lock, session
from harness.background import Background
from harness.database import literal, quoted
from harness.inventory import COMMENT
from harness.report import Reporter
from harness.residue import Residue
from harness.results import PackageResult
from harness.session import Opened
from harness.settings import Package
from harness.targets import name_beside
from harness.watch import Watch

if TYPE_CHECKING:
    from harness.database import Connection
    from harness.spare import Spare

PATIENCE = 0.05
"""Seconds between two attempts to cancel what an interrupted clone is at."""


class Upkeep:
    """The hooks of one run over the databases that `run` holds, pristine as they are now."""

    def __init__(self, run: Opened, reporter: Reporter) -> None:
        self._policy = run.settings.run.residue
        self._connection, self._root = run.connection, run.settings.root
        self._reporter = reporter
        self._names = {target.role: target.dsn.name for target in run.targets}
        self._databases = database.ask_databases(run.connection)
        self._watches: dict[str, Watch] = {}
        self._isolations: dict[str, _Isolation] = {}
        for target in run.targets if self._policy != "off" else ():
            # An ordinary maintenance role may be shut out where the owner is not.
            dsn = run.env.dsn("maintenance").at(target.dsn.name) if run.proof.server.superuser else target.dsn
            clears = run.own_cluster and run.settings.stack.createdb
            self._watches[target.role] = Watch(dsn, target.dsn.user, run.connection, shared=not run.own_cluster, clears=clears)
            self._watches[target.role].begin()

    @contextmanager
    def isolating(self, run: Opened, packages: Sequence[Package], *, salt: str) -> Iterator[None]:
        """Give each package a pristine database of its own; the next one is made while a package runs."""
        numbers = Counter(package.role for package in packages)
        with ExitStack() as stack:
            for role, number in numbers.items():
                connection, spare = stack.enter_context(session.spare(run, role, salt=salt, say=self._reporter.say))
                self._isolations[role] = _Isolation(connection, spare, number, partial(self._expect, role))
                stack.callback(self._isolations[role].stop)
            yield

    def _expect(self, role: str) -> None:
        if role in self._watches:
            self._watches[role].expect(name_beside("new", self._names[role]))

    def before(self, package: Package) -> None:
        """Put a pristine database in place of the one that an earlier package used, and say for others who is at work on it."""
        isolation = self._isolations.get(package.role)
        if isolation and isolation.renew() and package.role in self._watches:
            self._watches[package.role].renew()
            self._databases = database.ask_databases(self._connection)
        if isolation:
            isolation.start()
        with suppress(database.Error):  # a session that is lost is told of at the run's end
            lock.sign(self._connection, self._root)

    def after(self, package: Package, result: PackageResult) -> PackageResult:
        """Look at what the package left; tell it, and let the package fail for it, as harness.toml says."""
        watch = self._watches.get(package.role)
        residue = watch.look() if watch else None
        if residue is None:
            return result
        if any(change.name == COMMENT for change in residue.settings):
            self._stamp_again(package.role)
        result = result._replace(residue=residue)
        if not residue.summary or package.allow_residue:
            return result
        self._reporter.say(f"{package.name} left in database {self._names[package.role]!r}: {residue.summary}")
        if self._policy == "fail" and result.status in ("passed", "skipped", "empty"):
            return result._replace(status="failed", detail=f"left behind: {residue.summary}")
        return result

    def _stamp_again(self, role: str) -> None:
        """Put back the comment by which the next reset knows the database, if it is still the same one."""
        name = self._names[role]
        with suppress(database.Error):  # a package may have taken it from us; the next reset says so
            then, now = self._databases[name], database.ask_databases(self._connection).get(name)
            if now and then.stamp and (now.oid, now.stamp) == (then.oid, None):
                self._connection.execute(f"COMMENT ON DATABASE {quoted(name)} IS {literal(then.stamp.text())}".encode())
                self._watches[role].stamped()


class _Isolation:
    """The pristine databases of one class, each made in a thread of its own while a package runs."""

    def __init__(self, connection: Connection, spare: Spare, packages: int, expect: Callable[[], None]) -> None:
        self._connection, self._spare, self._left, self._expect = connection, spare, packages, expect
        self._making: Background[None] | None = None

    def start(self) -> None:
        """Begin with the next database, if a package may come that needs it."""
        self._left -= 1
        if self._left > 0:
            self._making = Background(self._prepare)

    def _prepare(self) -> None:
        self._spare.prepare()
        self._expect()

    def renew(self) -> bool:
        """Put the next database in place; False for the first package, whose database is pristine already."""
        if self._making is None:
            return False
        self._making.result()  # till then it is for `stop` to end
        self._making = None
        self._spare.publish()
        return True

    def stop(self) -> None:
        """Cancel what is being made, after a signal or a failure, and wait for its end."""
        while self._making is not None and not self._making.wait(PATIENCE):
            with suppress(database.Error):
                self._connection.cancel_safe()


def residue_of(result: PackageResult) -> Residue | None:
    """Return what a package of this process's own run left behind."""
    return result.residue if isinstance(result.residue, Residue) else None
