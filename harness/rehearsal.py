"""The streams from zero, twice, in a throw-away database: do they arrive, and at the same schema each time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from harness import database, obstacles, reset, schema, templates
from harness.errors import HarnessError
from harness.reset import Order, Work
from harness.templates import Guise, Recipe

if TYPE_CHECKING:
    from harness.database import Connection


class Rehearsal(NamedTuple):
    """How much was applied, what was made (one line per object), and what the two times do not share."""

    migrations: int
    objects: int
    differences: tuple[str, ...]


def rehearse(connection: Connection, order: Order, say: Callable[[str], None]) -> Rehearsal:
    """Apply all streams twice to a new database beside the order's one target, which keeps its content.

    Nothing stays of either. Raises ResetFailed as a reset does; what a killed rehearsal leaves the next reset sweeps.
    """
    work = Work(connection, order, say)
    reset.check(work)
    (recipe,) = work.recipes
    applied, first = _once(work, recipe)
    _, second = _once(work, recipe)
    return Rehearsal(applied, len(first), tuple(schema.differences(first, second)))


def _once(work: Work, recipe: Recipe) -> tuple[int, tuple[str, ...]]:
    templates.lay(work.connection, recipe)
    guise = Guise(work.connection, recipe, exists=recipe.name in work.databases) if templates.reaches_out(recipe.plan) else None
    try:
        if guise:
            guise.put_on(work.connection)
        applied = templates.fill(recipe)
        with database.connect(recipe.maintenance.at(recipe.new), purpose="compare") as inside:
            found = schema.describe(inside)
        return applied, found
    finally:
        with suppress(database.Error, HarnessError):
            if guise:
                guise.remove(work.connection)
            for name in (recipe.new, "" if recipe.name in work.databases else recipe.name):
                row = database.ask_databases(work.connection).get(name)
                if row is not None:
                    obstacles.drop(work.connection, row)
