"""Judge runs: compare two, find who makes a package fail, share packages among machines. Pure, over results and an oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import NamedTuple, TypeVar

from harness.results import BAD_OUTCOMES, PackageResult

T = TypeVar("T")

ABSENT = "absent"
"""The outcome of a test or package that one of two runs did not have."""


class Difference(NamedTuple):
    """A test (or, where no test explains it, a package) that ended differently in two runs."""

    id: str
    first: str
    second: str


def compare(first: Iterable[PackageResult], second: Iterable[PackageResult]) -> list[Difference]:
    """Return what ended differently, test by test, in the first run's order; then what only the second run had."""
    one, two = {result.package: result for result in first}, {result.package: result for result in second}
    found = []
    for package in {**one, **two}:
        tests = _differences(_outcomes(one.get(package)), _outcomes(two.get(package)))
        found += tests or _differences(_status(package, one), _status(package, two))
    return found


def _outcomes(result: PackageResult | None) -> dict[str, str]:
    outcomes: dict[str, list[str]] = {}
    for test in result.tests if result else ():
        outcomes.setdefault(test.id, []).append(test.outcome)
    return {name: ", ".join(sorted(several)) for name, several in outcomes.items()}


def _status(package: str, results: Mapping[str, PackageResult]) -> dict[str, str]:
    return {package: results[package].status} if package in results else {}


def _differences(one: Mapping[str, str], two: Mapping[str, str]) -> list[Difference]:
    pairs = [Difference(name, one.get(name, ABSENT), two.get(name, ABSENT)) for name in {**one, **two}]
    return [pair for pair in pairs if pair.first != pair.second]


def package_of(test_id: str) -> str:
    """Return the package in a test id, or the package name itself."""
    return test_id.partition("::")[0]


def before(package: str, results: Iterable[PackageResult]) -> list[PackageResult]:
    """Return what ran before `package`, all when it did not run."""
    found = []
    for result in results:
        if result.package == package:
            break
        found.append(result)
    return found


def is_bad(victim: str, results: Iterable[PackageResult]) -> bool | None:
    """Say whether `victim`, a package or a test id, failed; None when the run shows no such test.

    A test that a package did not come to, since it crashed or ran out of time, has failed.
    """
    package = package_of(victim)
    for result in results:
        if result.package != package:
            continue
        if victim == package:
            return not result.fine
        outcomes = [test.outcome for test in result.tests if test.id == victim]
        if outcomes:
            return any(outcome in BAD_OUTCOMES for outcome in outcomes)
        return None if result.fine or result.status == "failed" else True
    return None


def bad_tests(results: Iterable[PackageResult], package: str) -> set[str]:
    """Return the ids of the tests of `package` that failed."""
    return {test.id for result in results if result.package == package for test in result.tests if test.outcome in BAD_OUTCOMES}


def shuffled(items: Sequence[T], seed: int) -> list[T]:
    """Return the items in an order that depends on the seed and their number only."""
    found = list(items)
    Random(seed).shuffle(found)  # noqa: S311  # an order, no secret
    return found


def shard(names: Sequence[str], seconds: Mapping[str, float], *, index: int, count: int) -> list[str]:
    """Return the share of machine `index` (from 1) of `count`, in the order given.

    The longest package goes to the machine with the least to do; one without a duration weighs as much as the others'
    mean. The shares of all machines are disjoint and complete when each is given the same names and seconds.
    """
    known = [seconds[name] for name in names if name in seconds]
    usual = sum(known) / len(known) if known else 1.0
    weights = [seconds.get(name, usual) for name in names]
    loads = [(0.0, 0)] * count  # the number of packages too, so that those of no time at all are spread as well
    shares: list[list[int]] = [[] for _ in range(count)]
    for position in sorted(range(len(names)), key=lambda position: (-weights[position], position)):
        machine = min(range(count), key=lambda machine: (loads[machine], machine))
        loads[machine] = (loads[machine][0] + weights[position], loads[machine][1] + 1)
        shares[machine].append(position)
    return [names[position] for position in sorted(shares[index - 1])]


class Trial(NamedTuple):
    """One run of a search: the packages that ran before the victim, and whether it failed then."""

    packages: tuple[str, ...]
    fails: bool


class Finding(NamedTuple):
    """How a search ended.

    `verdict` is polluter, pair, group (three or more that only act together), fails-alone, does-not-fail, flaky or
    interrupted. `polluters` are proven; `candidates` are those among whom the next one is, when the search was cut short.
    """

    verdict: str
    polluters: tuple[str, ...]
    candidates: tuple[str, ...]
    trials: tuple[Trial, ...]


class _Flickers(Exception):
    """Two trials of one question gave different answers."""


class Search:
    """The search for the earlier packages that make a victim fail.

    `fails` runs the given packages, in the order of `earlier`, and then the victim, on pristine databases, and says whether
    the victim failed. Each question is asked `repeat` times. One polluter of n packages takes at most ⌈log2 n⌉ + 3 questions,
    each further one that only acts together with those found ⌈log2 n⌉ + 1 more.
    """

    def __init__(self, earlier: Sequence[str], fails: Callable[[tuple[str, ...]], bool], *, repeat: int = 1) -> None:
        self._earlier, self._fails, self._repeat = tuple(earlier), fails, repeat
        self._answers: dict[tuple[str, ...], bool] = {}
        self._candidates: tuple[str, ...] = self._earlier
        self._together: tuple[str, ...] = ()
        self._trials: list[Trial] = []

    def run(self) -> Finding:
        """Check the premises, search, check the answer; an oracle's exception passes through, and `so_far` tells the rest."""
        try:
            return self._finding(self._search())
        except _Flickers:
            return self._finding("flaky")

    def so_far(self) -> Finding:
        """Return what a search that was cut short knows."""
        return self._finding("interrupted")

    def _finding(self, verdict: str) -> Finding:
        found = verdict in ("polluter", "pair", "group")
        candidates = self._candidates if verdict in ("interrupted", "flaky") else ()
        return Finding(verdict, self._together if found or candidates else (), candidates, tuple(self._trials))

    def _ask(self, packages: tuple[str, ...]) -> bool:
        if packages not in self._answers:
            trials = [self._try(packages) for _ in range(self._repeat)]
            self._answers[packages] = trials[0].fails
        return self._answers[packages]

    def _try(self, packages: tuple[str, ...]) -> Trial:
        trial = Trial(packages, self._fails(packages))
        self._trials.append(trial)
        if trial._replace(fails=not trial.fails) in self._trials:
            raise _Flickers
        return trial

    def _search(self) -> str:
        if self._ask(()):
            return "fails-alone"
        if not self._ask(self._earlier):
            return "does-not-fail"
        while not self._together or not self._ask(self._together):
            self._find_one_more()
        return {1: "polluter", 2: "pair"}.get(len(self._together), "group")

    def _find_one_more(self) -> None:
        """Find the shortest beginning of the candidates after which, with those found, the victim fails; its last one acts.

        The victim passes after none of them and fails after all: whatever lies between, the halving keeps such a pair of
        ends, so that the one found is needed even where another package heals what an earlier one did.
        """
        passes, fails = 0, len(self._candidates)
        beginning = self._candidates
        while fails - passes > 1:
            middle = (passes + fails) // 2
            if self._ask((*beginning[:middle], *self._together)):
                fails = middle
            else:
                passes = middle
            self._candidates = beginning[passes:fails]
        self._together = (beginning[fails - 1], *self._together)
        self._candidates = beginning[: fails - 1]
