"""One run on several machines: which packages are this one's, and the machines' results joined again."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness import junit, verdict
from harness.errors import TESTS_FAILED, Outcome, UsageError
from harness.report import summary_lines
from harness.results import PackageResult, decode_package, encode, totals
from harness.session import Say
from harness.settings import Package

_EXAMPLE = "Name a results file of `inv test --json FILE`, such as test/.stack/last.json."


class Part(NamedTuple):
    """One machine's results, as it wrote them; `shard` is its number, from 1, and how many there are."""

    path: str
    shard: tuple[int, int] | None
    pristine: bool
    databases: list[Any]
    packages: list[PackageResult]
    failure: str


def parse(text: str) -> tuple[int, int]:
    """Return I and N of I/N; UsageError unless I is from 1 to N."""
    match = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"--shard is {text!r}", next="Give I/N: this machine's number, from 1, and how many there are, as in 2/5.")
    return int(match[1]), int(match[2])


def choose(packages: Sequence[Package], shard: tuple[int, int], durations: str) -> tuple[Package, ...]:
    """Return this machine's packages, in their order.

    Without a file of durations each weighs the same: what this machine alone remembers would give another sharing on each.
    """
    seconds = read_durations(Path(durations)) if durations else {}
    mine = set(verdict.shard([package.name for package in packages], seconds, index=shard[0], count=shard[1]))
    return tuple(package for package in packages if package.name in mine)


def read_durations(path: Path) -> dict[str, float]:
    """Return how long each package took, by the results file of a run; UsageError when it is none."""
    return {result.package: result.seconds for result in _read(path).packages if result.status != "not-run"}


def _read(path: Path) -> Part:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{str(path)!r} cannot be read: {reason}", next=_EXAMPLE) from None
    try:
        return _part(str(path), json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{str(path)!r} is no results file", next=_EXAMPLE) from None


def _part(path: str, document: Mapping[str, Any]) -> Part:
    if "packages" not in document and document["error"]:
        return Part(path, None, False, [], [], str(document["error"]["message"]))
    share = document.get("shard")
    shard = (int(share["index"]), int(share["count"])) if share else None
    packages = [decode_package(package) for package in document["packages"]]
    error = document.get("error")
    return Part(path, shard, bool(document["pristine"]), document["databases"], packages, str(error["message"]) if error else "")


def merge(files: Sequence[str], *, junit_to: str, outcome: Outcome, say: Say) -> None:
    """Join the machines' results files, and their JUnit files into `junit_to`; say the summary of all.

    Exit code 1 when a package is not fine, a machine failed or one's results are missing. UsageError for files that do not
    belong together.
    """
    suites = [Path(file) for file in files if file.endswith(".xml")]
    parts = [_read(Path(file)) for file in files if not file.endswith(".xml")]
    if suites and not junit_to:
        raise UsageError(f"{str(suites[0])!r} is to be joined, and nothing says where to", next="Add --junit FILE.")
    if not parts and not suites:
        raise UsageError("report-merge has no files to join", next="Name the shards' results files, and JUnit files if there are any.")
    parts.sort(key=lambda part: part.shard or (0, 0))
    missing = _missing(parts)
    results = [result for part in parts for result in part.packages]
    pristine = all(part.pristine for part in parts)
    if parts:
        outcome.document = {
            "databases": [database for part in parts for database in part.databases],
            "pristine": pristine,
            "shard": None,
            "packages": encode(results),
            "totals": totals(results),
        }
        for line in summary_lines(results, pristine=pristine):
            say(line)
    if junit_to:
        if suites:
            junit.join(Path(junit_to), suites)
        else:
            junit.write(Path(junit_to), results)
    trouble = [f"{part.path}: {part.failure}" for part in parts if part.failure]
    trouble += [f"the results of shard {number} are missing" for number in missing]
    for line in trouble:
        say(line)
    outcome.exit = TESTS_FAILED if trouble or not all(result.fine for result in results) else 0


def _missing(parts: Sequence[Part]) -> list[str]:
    """Return the shards without results; UsageError for a shard or a package that is there twice, and for sharings that differ."""
    shards = [part.shard for part in parts if part.shard]
    counts = {count for _, count in shards}
    if len(counts) > 1:
        raise UsageError(f"the files are of runs on {' and '.join(map(str, sorted(counts)))} machines", next="Name the files of one run.")
    names = [result.package for part in parts for result in part.packages]
    doubles = [f"shard {index}/{count}" for index, count in shards if shards.count((index, count)) > 1]
    doubles += [f"package {name!r}" for name in names if names.count(name) > 1]
    if doubles:
        raise UsageError(f"the results of {doubles[0]} are there twice", next="Name the files of one run, each once.")
    return [f"{index}/{count}" for count in counts for index in range(1, count + 1) if (index, count) not in shards]
