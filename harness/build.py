"""Every target's next database, under its derived name: cloned from its template, or migrated from zero."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from harness import attributes, database, obstacles, templates
from harness.attributes import Attributes
from harness.crew import Crew
from harness.database import DatabaseRow, failing_as
from harness.errors import ResetFailed
from harness.obstacles import Obstacle
from harness.templates import Guise, Recipe

if TYPE_CHECKING:
    from harness.database import Connection

NOT_ITS_FAULT = ("53", "57", "08")
"""SQLSTATE classes that say nothing about a template: no room, the operator, no connection."""


class Build:
    """The making of the databases of some recipes; what is known of each, by role.

    `warm` says which came from a template, `wanted` what a clone still lacks, `migrations` how much was applied; `placed` the
    oid, by name, of what streams saw under the literal name: an empty placeholder where nothing was.
    """

    def __init__(
        self,
        connection: Connection,
        recipes: Sequence[Recipe],
        databases: Mapping[str, DatabaseRow],
        say: Callable[[str], None],
        *,
        fresh: bool,
    ) -> None:
        self._connection, self._recipes, self._databases = connection, recipes, databases
        self._say, self._fresh = say, fresh
        self._guises: list[Guise] = []
        self.warm = {recipe.target.role: not fresh and templates.is_usable(recipe, databases) for recipe in recipes}
        self.migrations = dict.fromkeys(self.warm, 0)
        self.wanted: dict[str, Attributes] = {}
        self.placed: dict[str, int] = {}

    def run(self, crew: Crew) -> None:
        """Make all of them at once; one after another where streams may act on what both share: roles, and databases by name.

        Raises ResetFailed; `undisguise` then gives the previous databases back what they had.
        """
        if all(self.warm.values()) or not templates.reaches_out(self._recipes[0].plan):
            crew.run(self._connection, [partial(self._make, recipe) for recipe in self._recipes], on_interrupt=self._end_migrations)
            return
        self.warm = dict.fromkeys(self.warm, False)
        self.wanted.clear()
        with failing_as("what the migrations do to databases under their literal names cannot be carried over"):
            for recipe in self._recipes:
                templates.lay(self._connection, recipe)
                guise = Guise(self._connection, recipe, exists=recipe.name in self._databases)
                self._guises.append(guise)
                self.placed[recipe.name] = guise.oid
            for recipe, guise in zip(self._recipes, self._guises, strict=True):
                guise.put_on(self._connection)
                self._fill(recipe, self._connection)
                guise.carry_over(self._connection)
            self.undisguise()
        crew.run(self._connection, [partial(self._publish, recipe) for recipe in self._recipes], on_interrupt=self._end_migrations)

    def look_ahead(self, connection: Connection) -> None:
        """Ask what the clones of the templates will lack."""
        known = {recipe.template: recipe.target.role for recipe in self._recipes if self.warm[recipe.target.role]}
        if known:
            self.wanted |= {known[name]: found for name, found in attributes.capture(connection, list(known)).items()}

    def undisguise(self) -> None:
        """Give the previous databases their own attributes and stamps again."""
        while self._guises:
            self._guises[-1].remove(self._connection)
            self._guises.pop()

    def _make(self, recipe: Recipe, connection: Connection) -> None:
        if self.warm[recipe.target.role] and self._clone(recipe, connection):
            templates.touch(connection, recipe, self._databases)
            return
        templates.lay(connection, recipe)
        self._fill(recipe, connection)
        self._publish(recipe, connection)

    def _clone(self, recipe: Recipe, connection: Connection) -> bool:
        """Clone the recipe's template; say whether that was possible: a damaged one is made anew."""
        try:
            templates.clone(connection, recipe)
        except database.Error as error:
            if (error.sqlstate or "08")[:2] in NOT_ITS_FAULT or error.sqlstate == obstacles.IN_USE:
                raise
            self._say(f"template {recipe.template!r} cannot be cloned ({error.diag.message_primary}); migrating instead")
            self.warm[recipe.target.role] = False
            self.wanted.pop(recipe.target.role, None)
            return False
        if recipe.target.role not in self.wanted:
            self.look_ahead(connection)
        return True

    def _fill(self, recipe: Recipe, connection: Connection) -> None:
        self.migrations[recipe.target.role] = templates.fill(recipe)
        for obstacle in obstacles.ask(connection, [recipe.new]):
            if obstacle.kind != "session":
                raise _left_by_migrations(obstacle)

    def _publish(self, recipe: Recipe, connection: Connection) -> None:
        """Keep what was built as a template, and clone that; a fresh or uncachable one becomes the database itself."""
        if not recipe.fingerprint or self._fresh:
            return
        templates.publish(connection, recipe, self._databases)
        with failing_as(f"template {recipe.template!r} cannot be cloned for {recipe.name!r}"):
            templates.clone(connection, recipe)
        self.wanted[recipe.target.role] = attributes.capture(connection, [recipe.template])[recipe.template]

    def _end_migrations(self, connection: Connection) -> None:
        """After a signal: end the sessions that migrations run on, which no cancelling of ours reaches."""
        found = database.ask_databases(connection)
        obstacles.quiet(connection, [found[recipe.new].oid for recipe in self._recipes if recipe.new in found])


def _left_by_migrations(obstacle: Obstacle) -> ResetFailed:
    return ResetFailed(
        f"the migrations leave behind the {obstacle.kind} {obstacle.subject!r}, which no copy of the database has and which keeps it from being dropped",
        next="Let the application or a test make it instead.",
    )
