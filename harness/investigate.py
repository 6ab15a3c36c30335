"""`inv verify` and `inv bisect`: several runs on pristine databases, compared; and who is to blame for a failure."""

from __future__ import annotations

import io
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from harness import report, runner, session, verdict
from harness.arguments import check_serial
from harness.errors import TESTS_FAILED, HarnessError, Interrupted, Outcome, UsageError
from harness.report import Reporter
from harness.results import DatabaseReset, PackageResult, encode
from harness.run import Request, document, run_once
from harness.runner import Workplace
from harness.session import Opened, Say
from harness.settings import Package, Settings, is_ci
from harness.upkeep import residue_of
from harness.verdict import Finding, Search


class Question(NamedTuple):
    """What `inv bisect` is asked: a package's name or a test's id, each run repeated; and what goes to every package's command."""

    victim: str
    packages: tuple[Package, ...]
    repeat: int = 1
    wait: float = 0.0
    arguments: tuple[str, ...] = ()


# --- verify


def verify(settings: Settings, shell: Mapping[str, str], request: Request, *, seed: int | None, outcome: Outcome) -> None:
    """Run the packages twice, each time on pristine databases, the second time shuffled by `seed`; say what differs and why it may.

    Exit code 1 when something differs, or when tests fail. Raises what `run.test` raises.
    """
    check_serial(request.arguments)
    second = request
    if seed is not None:
        second = request._replace(packages=shuffled(request.packages, seed))
    runs: list[list[PackageResult]] = []
    documents: list[dict[str, object]] = []
    outcome.document = {"runs": documents, "differences": []}
    expected = runner.expected_seconds(settings)
    reporter = Reporter(shell=shell, expected=expected, quiet=request.quiet)
    with (
        session.opened(settings, shell, roles=_roles(settings, request.packages), wait=request.wait, say=reporter.say) as opened,
        runner.workplace(settings, request.packages, opened.env, shell=shell, say=reporter.say, arguments=request.arguments) as place,
    ):
        for number, each in enumerate((request, second), 1):
            reporter = Reporter(shell=shell, expected=expected, quiet=request.quiet)
            reporter.say(f"run {number} of 2{f', shuffled by {seed}' if seed is not None and number > 1 else ''}")
            databases: list[DatabaseReset] = []
            place.renew()
            try:
                again, databases = _pristine(opened, reporter.say)
                run_once(again, place, each, reporter)
            finally:
                runs.append(reporter.results)
                documents.append(document(each, reporter, databases))
    differences = verdict.compare(*runs)
    outcome.document["differences"] = encode(differences)
    for line in _verify_lines(runs, differences, seed=seed):
        reporter.say(line)
    outcome.exit = TESTS_FAILED if differences or not all(result.fine for results in runs for result in results) else 0


def _verify_lines(runs: Sequence[Sequence[PackageResult]], differences: Sequence[verdict.Difference], *, seed: int | None) -> list[str]:
    lines = [
        "",
        *(f"run {number}: {report.result_line(result)}" for number, run in enumerate(runs, 1) for result in run if not result.fine),
    ]
    if not differences:
        count = sum(len(result.tests) for result in runs[0])
        return [*lines, f"both runs ended alike: {count} tests in {len(runs[0])} packages"]
    for package in dict.fromkeys(verdict.package_of(difference.id) for difference in differences):
        lines += ["", *(f"{one.id}: {one.first}, then {one.second}" for one in differences if verdict.package_of(one.id) == package)]
        lines += [f"  {line}" for line in _between(runs, package)]
        lines.append(f"  {_bisect_command(package, seed)}")
    return [*lines, "", f"{len(differences)} difference(s) between the two runs"]


def _between(runs: Sequence[Sequence[PackageResult]], package: str) -> list[str]:
    """Return what stood before the package in each run that did not stand before it in the other."""
    earlier = [verdict.before(package, run) for run in runs]
    told = [{(result.package, _summary(result)) for result in before} for before in earlier]
    if told[0] == told[1]:
        return ["the same packages ran before it, and left the same: it flickers by itself, or by something outside the databases"]
    lines = []
    for number, before in enumerate(earlier, 1):
        other = told[2 - number]
        found = [result for result in before if _summary(result) and (result.package, _summary(result)) not in other]
        lines += [f"before it in run {number} only: {result.package}, which left {_summary(result)}" for result in found]
    return lines or ["other packages ran before it in the two runs, and left nothing in their databases"]


def _summary(result: PackageResult) -> str:
    residue = residue_of(result)
    return residue.summary if residue else ""


def _bisect_command(package: str, seed: int | None) -> str:
    return shlex.join(["inv", "bisect", "--package", package, *(["--shuffle", str(seed)] if seed is not None else [])])


# --- bisect


class _Runs:
    """The runs of one search: each an answer to whether the victim fails after some packages."""

    def __init__(self, opened: Opened, place: Workplace, question: Question, say: Say) -> None:
        self.opened, self.place, self.question, self.say = opened, place, question, say
        self.by_name = {package.name: package for package in question.packages}
        self.results: dict[tuple[str, ...], list[PackageResult]] = {}
        self.number = 0

    def fails(self, names: tuple[str, ...]) -> bool:
        """Run the packages and then the victim on pristine databases; say what came of it."""
        victim = self.question.victim
        packages = [self.by_name[name] for name in (*names, verdict.package_of(victim))]
        self.number += 1
        reporter = Reporter(shell=self.opened.shell, quiet=True, stream=io.StringIO())
        self.place.renew()
        self.opened, _ = _pristine(self.opened, reporter.say)
        results = run_once(
            self.opened, self.place, Request(packages=tuple(packages), arguments=self.question.arguments, quiet=True), reporter
        )
        bad = verdict.is_bad(victim, results)
        if bad is None:
            known = sorted(test.id for test in results[-1].tests)
            raise UsageError(f"there is no test {victim!r} in a run of its package", next=f"It has: {', '.join(known) or 'no tests'}.")
        self.results[names] = results
        self.say(f"run {self.number}: after {_list(names)}: {'fails' if bad else 'passes'}")
        return bad


def bisect(settings: Settings, shell: Mapping[str, str], question: Question, *, outcome: Outcome, say: Say) -> None:
    """Find the earlier packages whose work makes the victim fail, each run on pristine databases.

    A signal, or a failure of a reset, leaves what is known by then. Raises what `run.test` raises, and UsageError for a
    victim that is not there.
    """
    check_serial(question.arguments)
    names = [package.name for package in question.packages]
    package = verdict.package_of(question.victim)
    if package not in names:
        raise UsageError(f"there is no package {package!r}", next=f"Name one of: {', '.join(names)}.")
    earlier = names[: names.index(package)]
    chosen = question.packages[: len(earlier) + 1]
    with (
        session.opened(settings, shell, roles=_roles(settings, chosen), wait=question.wait, say=say) as opened,
        runner.workplace(settings, chosen, opened.env, shell=shell, say=say, arguments=question.arguments) as place,
    ):
        runs = _Runs(opened, place, question, say)
        search = Search(earlier, runs.fails, repeat=question.repeat)
        most = math.ceil(math.log2(len(earlier))) + 3 if earlier else 1
        each = f", each run {question.repeat} times" if question.repeat > 1 else ""
        say(f"{question.victim} has {len(earlier)} package(s) before it; one polluter takes at most {most} runs{each}")
        try:
            finding = search.run()
        except UsageError:
            raise  # the question is wrong: there is nothing to answer
        except (Interrupted, HarnessError):
            _answer(settings, question, search.so_far(), runs, outcome, say)
            raise
        _answer(settings, question, finding, runs, outcome, say)


def _answer(settings: Settings, question: Question, finding: Finding, runs: _Runs, outcome: Outcome, say: Say) -> None:
    blamed = [result for result in runs.results.get(finding.polluters, []) if result.package in finding.polluters]
    command = _reproduce(settings, finding.polluters, question) if blamed else ""
    outcome.document = {
        "victim": question.victim,
        "verdict": finding.verdict,
        "polluters": list(finding.polluters),
        "runs": encode(finding.trials),
        "residue": [{"package": result.package, "residue": encode(result.residue)} for result in blamed],
        **({"command": command} if command else {}),  # in place of the task's name
    }
    for line in _answer_lines(question, finding, runs):
        say(line)
    for result in blamed:
        for line in _blame(result):
            say(line)
    if command:
        say(command)


def _answer_lines(question: Question, finding: Finding, runs: _Runs) -> list[str]:
    victim, polluters = question.victim, _list(finding.polluters)
    if finding.verdict == "fails-alone":
        return [f"{victim} fails alone, on pristine databases: no other package is to blame", *_only_later(question, runs)]
    if finding.verdict == "does-not-fail":
        return [f"{victim} does not fail after all packages before it; give --repeat N if it does so now and then"]
    if finding.verdict == "flaky":
        last = finding.trials[-1]
        return [f"{victim} flickers: it passes and fails after {_list(last.packages)}, on pristine databases each time"]
    if finding.verdict == "interrupted":
        found = f"{polluters} take(s) part in it; " if finding.polluters else ""
        return [f"interrupted after {len(finding.trials)} run(s): {found}the culprit is among {_list(finding.candidates)}"]
    alone = "" if finding.verdict == "polluter" else ", and only after all of them"
    return [f"{victim} fails after {polluters}{alone}; alone it passes ({len(finding.trials)} runs)"]


def _only_later(question: Question, runs: _Runs) -> list[str]:
    """Return nothing for a test; for a package, the hint that a test of it may be asked about by its id."""
    if "::" in question.victim:
        return []
    bad = sorted(verdict.bad_tests(runs.results.get((), []), question.victim))
    return [f"  its tests that fail alone: {', '.join(bad)}; ask about another one with --test ID"] if bad else []


def _blame(result: PackageResult) -> list[str]:
    residue = residue_of(result)
    if residue is None:
        return [f"{result.package} left nothing in its database: look for files, and for what it does to other servers"]
    rows = [f"  {table.name}: {row}" for table in residue.tables for row in table.rows]
    moved = [f"  sequence {one.name}: {one.before} → {one.after}" for one in residue.sequences if one.by_inserts]
    return [f"{result.package} left: {residue.summary or 'sequences that its inserts moved'}", *rows, *moved]


def _reproduce(settings: Settings, polluters: Sequence[str], question: Question) -> str:
    """Return the one command that shows the failure again; `inv test` runs packages in harness.toml's order."""
    names = [*polluters, verdict.package_of(question.victim)]
    order = [package.name for package in settings.packages]
    tail = ["--", *question.arguments] if question.arguments else []
    if sorted(names, key=order.index) == names:
        return shlex.join(["inv", "test", *(part for name in names for part in ("--package", name)), *tail])
    first = [shlex.join(["inv", "test", "--package", names[0], *tail])]
    return "; ".join([*first, *(shlex.join(["inv", "test", "--no-reset", "--package", name, *tail]) for name in names[1:])])


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "nothing"


# --- both


def shuffled(packages: Sequence[Package], seed: int) -> tuple[Package, ...]:
    """Return the packages of each class in an order of their own: a class has its database, and its order is what counts there."""
    classes = [[package for package in packages if package.role == role] for role in dict.fromkeys(package.role for package in packages)]
    return tuple(package for one in classes for package in verdict.shuffled(one, seed))


def _roles(settings: Settings, packages: Sequence[Package]) -> list[str]:
    return [role for role in settings.test_roles if any(package.role == role for package in packages)]


def _pristine(opened: Opened, say: Say) -> tuple[Opened, list[DatabaseReset]]:
    """Reset the databases once more, as proven anew; lines about what was in the way go to `say`."""
    opened = session.renewed(opened)
    databases = session.make_pristine(opened, fresh=is_ci(opened.shell), say=say)
    for line in report.reset_lines(databases):
        say(line)
    return opened, databases
