"""Comparing runs, searching for polluters and sharing packages, over synthetic runs and oracles."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.results import PackageResult
from harness.results import TestResult as OneTest
from harness.verdict import ABSENT, Difference, Finding, Search, Trial, bad_tests, before, compare, is_bad, package_of, shard, shuffled

NAMES = tuple(f"tests/{letter}" for letter in "abcdefgh")


def package(name: str, status: str = "passed", **outcomes: str) -> PackageResult:
    """Return a package's result with a test per keyword."""
    tests = tuple(OneTest(f"{name}::{test}", outcome, 0.1) for test, outcome in outcomes.items())
    return PackageResult(name, "test", status, 0, None, 0.0, 1.0, tests, fine=status in ("passed", "skipped"))


def log2(number: int) -> int:
    """Return the halvings that tell `number` candidates apart."""
    return math.ceil(math.log2(number)) if number else 0


# --- compare


def test_equal_runs_do_not_differ() -> None:
    """The order of packages and the time they took are no difference."""
    first = [package("a", one="passed"), package("b", "failed", two="failed")]
    assert compare(first, [result._replace(seconds=9.0) for result in reversed(first)]) == []


def test_each_test_is_compared() -> None:
    """A changed outcome, a vanished test and a new one are differences; the package's status is then no further one."""
    first = [package("a", one="passed", two="passed", gone="skipped")]
    second = [package("a", "failed", one="passed", two="failed", new="passed")]
    assert compare(first, second) == [
        Difference("a::two", "passed", "failed"),
        Difference("a::gone", "skipped", ABSENT),
        Difference("a::new", ABSENT, "passed"),
    ]


def test_a_package_without_tests_is_compared_by_its_status() -> None:
    """A command that fails the second time, and a package that only one run had, are differences."""
    assert compare([package("a"), package("b")], [package("a", "crashed"), package("c")]) == [
        Difference("a", "passed", "crashed"),
        Difference("b", "passed", ABSENT),
        Difference("c", ABSENT, "passed"),
    ]


def test_a_test_that_ran_twice_is_compared_with_all_its_outcomes() -> None:
    """Two tests of one id are told apart from one."""
    twice = package("a", one="passed")._replace(tests=(OneTest("a::one", "passed", 0), OneTest("a::one", "failed", 0)))
    assert compare([twice], [package("a", one="passed")]) == [Difference("a::one", "failed, passed", "passed")]


outcomes = st.dictionaries(st.sampled_from(["one", "two", "three"]), st.sampled_from(["passed", "failed", "skipped"]))
runs = st.dictionaries(st.sampled_from(NAMES), outcomes).map(lambda found: [package(name, **tests) for name, tests in found.items()])


@given(runs, runs)
def test_compare_names_exactly_what_differs(first: list[PackageResult], second: list[PackageResult]) -> None:
    """Two runs are equal exactly when nothing differs, and turning them round turns each difference round."""
    assert compare(first, first) == []
    there, back = compare(first, second), compare(second, first)
    assert sorted((one.id, one.second, one.first) for one in there) == sorted(back)
    assert all(one.first != one.second for one in there)

    def table(results: list[PackageResult]) -> dict[str, str]:
        tests = {test.id: test.outcome for result in results for test in result.tests}
        return tests | {result.package: result.status for result in results if not result.tests}

    one, two = table(first), table(second)
    assert {name for name in {**one, **two} if "::" in name and one.get(name) != two.get(name)} <= {difference.id for difference in there}


# --- questions about one run


def test_is_bad_asks_for_a_package_or_a_test() -> None:
    """A package is bad when it is not fine; a test when it failed, or when its package crashed before it."""
    results = [package("a", one="passed"), package("b", "failed", one="passed", two="error"), package("c", "crashed", one="passed")]
    expected = {"a": False, "b": True, "a::one": False, "b::one": False, "b::two": True, "c::two": True, "c::one": False}
    assert {victim: is_bad(victim, results) for victim in expected} == expected
    assert [is_bad(victim, results) for victim in ("a::gone", "b::gone", "z", "z::one")] == [None] * 4


def test_bad_tests_are_those_of_the_package() -> None:
    """Failed and error count; other packages do not."""
    results = [package("a", "failed", one="failed"), package("b", "failed", one="failed", two="error", three="xfailed")]
    assert bad_tests(results, "b") == {"b::one", "b::two"}


def test_before_is_what_ran_earlier() -> None:
    """Everything when the package did not run at all."""
    results = [package(name) for name in "abc"]
    assert [[result.package for result in before(name, results)] for name in "acz"] == [[], ["a", "b"], ["a", "b", "c"]]


def test_the_package_of_an_id() -> None:
    """A package's own name stands for itself."""
    assert [package_of(name) for name in ("tests/a::test_x.py::test_y[1::2]", "tests/a")] == ["tests/a", "tests/a"]


# --- search


def search(earlier: tuple[str, ...], fails: Callable[[tuple[str, ...]], bool], repeat: int = 1) -> Finding:
    """Search, and check what every search promises."""
    order = {name: position for position, name in enumerate(earlier)}

    def checked(packages: tuple[str, ...]) -> bool:
        assert list(packages) == sorted(set(packages), key=order.__getitem__), "packages run in their own order, once"
        return fails(packages)

    finding = Search(earlier, checked, repeat=repeat).run()
    if repeat == 1:
        questions = [trial.packages for trial in finding.trials]
        assert len(questions) == len(set(questions)), "no question is asked twice"
    return finding


many = st.integers(1, 64).map(lambda number: tuple(f"p{position:02}" for position in range(number)))


@given(many, st.data())
def test_one_polluter_is_found_within_its_bound(earlier: tuple[str, ...], data: st.DataObject) -> None:
    """Whichever package it is, ⌈log2 n⌉ + 3 runs name it, the last of them the proof."""
    planted = data.draw(st.sampled_from(earlier))
    finding = search(earlier, lambda packages: planted in packages)
    assert (finding.verdict, finding.polluters, finding.candidates) == ("polluter", (planted,), ())
    assert Trial((planted,), fails=True) in finding.trials
    assert len(finding.trials) <= log2(len(earlier)) + 3


@given(many, st.data())
def test_a_pair_is_found_within_its_bound(earlier: tuple[str, ...], data: st.DataObject) -> None:
    """Two packages that only act together are both named, in 2⌈log2 n⌉ + 4 runs."""
    planted = set(data.draw(st.lists(st.sampled_from(earlier), min_size=2, max_size=2, unique=True)) if len(earlier) > 1 else earlier)
    finding = search(earlier, lambda packages: planted <= set(packages))
    assert finding.verdict == ("pair" if len(planted) > 1 else "polluter")
    assert finding.polluters == tuple(sorted(planted))
    assert len(finding.trials) <= 2 * log2(len(earlier)) + 4


@given(many, st.data())
def test_a_group_is_found_however_large(earlier: tuple[str, ...], data: st.DataObject) -> None:
    """Three or more that only act together are all named; each costs ⌈log2 n⌉ + 1 runs."""
    planted = set(data.draw(st.lists(st.sampled_from(earlier), min_size=1, max_size=5, unique=True)))
    finding = search(earlier, lambda packages: planted <= set(packages))
    assert finding.polluters == tuple(sorted(planted))
    assert finding.verdict == {1: "polluter", 2: "pair"}.get(len(planted), "group")
    assert len(finding.trials) <= len(planted) * (log2(len(earlier)) + 1) + 2


@given(many, st.data())
def test_of_several_polluters_one_is_proven(earlier: tuple[str, ...], data: st.DataObject) -> None:
    """Where each of several is enough, the search names one of them, within the bound for one."""
    planted = set(data.draw(st.lists(st.sampled_from(earlier), min_size=1, unique=True)))
    finding = search(earlier, lambda packages: bool(planted & set(packages)))
    assert finding.verdict == "polluter"
    assert set(finding.polluters) <= planted
    assert len(finding.trials) <= log2(len(earlier)) + 3


@given(many, st.randoms(use_true_random=False))
def test_whatever_the_oracle_the_answer_is_proven(earlier: tuple[str, ...], random: object) -> None:
    """Even where packages heal, break and depend on one another at random, the named ones alone make the victim fail."""
    known: dict[tuple[str, ...], bool] = {(): False, earlier: True}

    def fails(packages: tuple[str, ...]) -> bool:
        return known.setdefault(packages, random.random() < 0.5)  # type: ignore[attr-defined]  # hypothesis's Random

    finding = search(earlier, fails)
    assert finding.verdict in ("polluter", "pair", "group")
    assert known[finding.polluters]
    assert Trial(finding.polluters, fails=True) in finding.trials


@given(many, st.integers(0, 63), st.integers(0, 63))
def test_a_healed_polluter_is_not_blamed(earlier: tuple[str, ...], first: int, second: int) -> None:
    """A package that puts right what an earlier one did stands in the order of a full run: the later polluter is named."""
    polluters = {earlier[first % len(earlier)], earlier[second % len(earlier)]}
    healer = earlier[len(earlier) // 2]

    def fails(packages: tuple[str, ...]) -> bool:
        bad = False
        for name in packages:
            bad = (bad and name != healer) or name in polluters
        return bad

    finding = search(earlier, fails)
    if fails(earlier):
        assert finding.verdict == "polluter"
        assert set(finding.polluters) <= polluters
    else:
        assert finding.verdict == "does-not-fail"


@given(many)
def test_the_premises_are_checked(earlier: tuple[str, ...]) -> None:
    """A victim that fails alone takes one run, one that never fails takes two."""
    assert search(earlier, lambda _: True) == Finding("fails-alone", (), (), (Trial((), fails=True),))
    assert search(earlier, lambda _: False) == Finding("does-not-fail", (), (), (Trial((), fails=False), Trial(earlier, fails=False)))


def test_the_first_package_has_nobody_before_it() -> None:
    """One run tells that it does not fail."""
    assert search((), lambda _: False) == Finding("does-not-fail", (), (), (Trial((), fails=False),))


@given(many, st.integers(2, 4), st.integers(0, 20))
def test_a_victim_that_flickers_is_told(earlier: tuple[str, ...], repeat: int, turn: int) -> None:
    """With repeated questions, one question with two answers ends the search."""
    asked = 0

    def fails(packages: tuple[str, ...]) -> bool:
        nonlocal asked
        asked += 1
        return (earlier[-1] in packages) != (asked == turn)

    finding = search(earlier, fails, repeat)
    assert finding.verdict == ("flaky" if 0 < turn <= asked else "polluter")
    if finding.verdict == "flaky":
        last = finding.trials[-1]
        assert last._replace(fails=not last.fails) in finding.trials


@given(many, st.data())
def test_an_interrupted_search_knows_what_it_knew(earlier: tuple[str, ...], data: st.DataObject) -> None:
    """At whatever run it is cut short, the planted one is proven to be among the candidates or those found."""
    planted = data.draw(st.sampled_from(earlier))
    stop = data.draw(st.integers(0, log2(len(earlier)) + 3))
    asked = 0

    def fails(packages: tuple[str, ...]) -> bool:
        nonlocal asked
        asked += 1
        if asked > stop:
            raise KeyboardInterrupt
        return planted in packages

    search = Search(earlier, fails)
    try:
        finding = search.run()
    except KeyboardInterrupt:
        finding = search.so_far()
        assert finding.verdict == "interrupted"
        assert len(finding.trials) == stop
    assert planted in (*finding.polluters, *finding.candidates)
    if finding.verdict == "interrupted" and stop >= 2 and not finding.polluters:
        assert len(finding.candidates) <= math.ceil(len(earlier) / 2 ** (stop - 2))


# --- shard and shuffle

durations = st.dictionaries(st.sampled_from(NAMES), st.floats(0, 1000))


@given(st.lists(st.sampled_from(NAMES), unique=True), durations, st.integers(1, 12))
def test_shards_are_complete_disjoint_and_in_order(names: list[str], seconds: dict[str, float], count: int) -> None:
    """Every package is in exactly one share, and each share keeps the run's order."""
    shares = [shard(names, seconds, index=index, count=count) for index in range(1, count + 1)]
    assert sorted(name for share in shares for name in share) == sorted(names)
    assert all(share == [name for name in names if name in share] for share in shares)
    assert shares == [shard(names, dict(reversed(seconds.items())), index=index, count=count) for index in range(1, count + 1)]


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=30), st.integers(1, 8))
def test_shards_are_balanced(weights: list[float], count: int) -> None:
    """The fullest machine has at most four thirds of what the best possible sharing gives it, and so of the mean and the longest."""
    seconds = {f"p{position}": weight for position, weight in enumerate(weights)}
    loads = [sum(seconds[name] for name in shard(list(seconds), seconds, index=index, count=count)) for index in range(1, count + 1)]
    longest = sorted(weights, reverse=True)
    assert max(loads) <= sum(weights) / count + longest[min(count, len(longest) - 1)] + 1e-6 or max(loads) == longest[0]


def test_unknown_packages_weigh_the_mean() -> None:
    """One without a duration is neither free nor a day long; without any durations the numbers are equal."""
    assert shard(["a", "b", "c"], {"a": 4.0, "b": 2.0}, index=1, count=2) == ["a"]
    assert [len(shard(list("abcdefg"), {}, index=index, count=3)) for index in (1, 2, 3)] == [3, 2, 2]
    assert [len(shard(list("abcd"), dict.fromkeys("abcd", 0.0), index=index, count=2)) for index in (1, 2)] == [2, 2]


@given(st.lists(st.integers(), unique=True), st.integers())
def test_a_shuffle_is_one_order_per_seed(items: list[int], seed: int) -> None:
    """The same seed gives the same order of the same items."""
    assert shuffled(items, seed) == shuffled(items, seed)
    assert sorted(shuffled(items, seed)) == sorted(items)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_shuffle_shuffles(seed: int) -> None:
    """Ten packages come in another order."""
    assert shuffled(range(10), seed) != list(range(10))
