"""Interleaved rounds, medians and quartiles, and ratios taken pair by pair within a round."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Contestant = Callable[[], float]


class Spread(NamedTuple):
    """A median and its quartiles."""

    low: float
    median: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Return those of some values."""
        low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
        return Spread(low, median, high)


def rounds(
    contestants: Mapping[str, Contestant],
    count: int,
    say: Callable[[str], None],
    *,
    settle: Callable[[], object],
    often: Mapping[str, int],
) -> dict[str, list[float]]:
    """Run every contestant once a round, or as `often` says, in an order of its own each time, and once before the first; return milliseconds.

    `settle` is called before each, so that none pays for what the one before it left to be done.
    """
    luck = random.Random(1)  # noqa: S311  # an order, no secret
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for run in contestants.values():
        run()
    for number in range(count):
        order = [name for name in contestants for _ in range(often.get(name, 1))]
        luck.shuffle(order)
        for name in order:
            settle()
            taken[name].append(contestants[name]())
        say(f"  round {number + 1} of {count}")
    return taken


def ratio(one: Sequence[float], other: Sequence[float]) -> Spread:
    """Return the ratios of the two, pair by pair."""
    return Spread.of([a / b for a, b in zip(one, other, strict=True)])
