"""Before a reset: what stands in the way of its databases is cleared or named, and what a killed one left is swept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from harness import database, obstacles
from harness.database import DatabaseRow, failing_as, quoted
from harness.errors import Refusal
from harness.obstacles import Obstacle
from harness.templates import Recipe

if TYPE_CHECKING:
    from harness.database import Connection


class Clearance:
    """The databases of some recipes, their derived names beside them; `databases` is the caller's, kept up to date."""

    def __init__(
        self,
        connection: Connection,
        recipes: Sequence[Recipe],
        databases: dict[str, DatabaseRow],
        role: str,
        say: Callable[[str], None],
    ) -> None:
        self._connection, self._recipes, self._databases = connection, recipes, databases
        self._role, self._say = role, say

    def check(self, names: Iterable[str]) -> bool:
        """Raise ResetFailed naming what stands in the way of the databases, but for what may be cleared and for what can be ended.

        Say whether there was anything at all, a session that can be ended among it.
        """
        there = {name: self._databases[name].oid for name in names if name in self._databases}
        if not obstacles.anything(self._connection, there.values()):
            return False
        for obstacle in obstacles.ask(self._connection, there):
            if not self._clear(obstacle):
                # Open again for whoever clears it.
                with suppress(database.Error):
                    self.open(obstacle.database)
                raise obstacles.explain(obstacle, role=self._role)
        return True

    def _clear(self, obstacle: Obstacle) -> bool:
        """Clear what nobody can miss: a prepared transaction in our own cluster, and anything in a database that lost its name."""
        recipe = next(recipe for recipe in self._recipes if obstacle.database in (recipe.name, recipe.new, recipe.old))
        orphaned = obstacle.kind == "prepared" and recipe.own_cluster
        if obstacle.kind == "session" or (obstacle.database == recipe.name and not orphaned):
            return False
        by_owner = obstacle.kind == "prepared" and obstacle.user == recipe.target.dsn.user
        dsn = (recipe.target.dsn if by_owner else recipe.maintenance).at(obstacle.database)
        statements = obstacles.clearing(obstacle)
        with failing_as(f"{obstacle.kind} {obstacle.subject!r} in database {obstacle.database!r} cannot be cleared"):
            self.open(obstacle.database)
            with database.connect(dsn, purpose="clear") as inside:
                for statement in statements:
                    inside.execute(statement.encode())
        self._say(f"cleared in database {obstacle.database!r}: {'; '.join(statements)}")
        return True

    def open(self, name: str) -> None:
        """Open a database that a killed reset closed."""
        if not self._databases[name].allows_connections:
            self._connection.execute(f"ALTER DATABASE {quoted(name)} ALLOW_CONNECTIONS true".encode())

    def sweep(self, recipe: Recipe) -> None:
        """Drop what a killed reset of this target left, and an invalid target."""
        for name in (recipe.new, recipe.old, recipe.name):
            row = self._databases.get(name)
            if row is None or (name == recipe.name and not row.invalid):
                continue
            if row.stamp is not None and not recipe.is_ours(row):
                raise Refusal(f"database {name!r} is in the way and carries another worktree's stamp", next="Drop it if nobody needs it.")
            obstacles.drop(self._connection, row)
            del self._databases[name]
