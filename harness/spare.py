"""The next database of a run that makes them one after another, built while the present one is in use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from harness import database, obstacles
from harness.crew import Crew
from harness.guard import prove
from harness.reset import Order, Work, drop_made_by_role, make_recipe, swap

if TYPE_CHECKING:
    from harness.database import Connection


class Spare:
    """The next database of one target: built while the present one is in use, and given its name when that is over.

    Works on `connection` alone, which is no other's; the run's own holds the lock of the target.
    """

    def __init__(self, connection: Connection, order: Order, say: Callable[[str], None]) -> None:
        self._connection, self._order, self._say = connection, order, say
        self._work: Work | None = None

    def prepare(self) -> None:
        """Drop what the last `publish` replaced, and build the next one aside; nothing is asked of, or done to, the present one."""
        self.clear()
        proof = self._order.proof._replace(databases=database.ask_databases(self._connection))
        targets = tuple(prove(proof, target.role) for target in self._order.targets)
        self._work = Work(self._connection, self._order._replace(proof=proof, targets=targets), self._say)
        names = [recipe.name for recipe in self._work.recipes]
        self._work.build.run(Crew(names, None))

    def publish(self) -> None:
        """Let the name lead to the database that was built."""
        if self._work is not None:
            swap(self._work)
            if self._order.createdb:
                self._work.databases.update(database.ask_databases(self._connection))
                for recipe in self._work.recipes:
                    drop_made_by_role(self._work, recipe, self._connection)

    def clear(self) -> None:
        """Drop what stands beside the present database."""
        if self._work is None:
            return
        work, self._work = self._work, None
        work.databases.clear()
        work.databases.update(database.ask_databases(self._connection))
        for recipe in work.recipes:
            work.clearance.check((recipe.new, recipe.old))
            work.clearance.sweep(recipe)

    def close(self) -> None:
        """Drop what stands beside the present database, and the templates of this run alone."""
        self.clear()
        if self._order.salt:
            found = database.ask_databases(self._connection)
            for name in {make_recipe(self._order, target).template for target in self._order.targets} & found.keys():
                obstacles.drop(self._connection, found[name])
