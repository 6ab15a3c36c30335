"""What stands after `--`: the paths among it, whether it chooses tests, and what a serial run refuses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from harness.errors import UsageError
from harness.settings import Package

_LONG = "numprocesses maxprocesses dist tx looponfail workers tests-per-worker parallel-threads"
_CACHED = (
    "lf last-failed ff failed-first nf new-first lfnf last-failed-no-failures sw stepwise sw-skip stepwise-skip sw-reset stepwise-reset"
)
_REFUSED = re.compile(rf"--(?:{'|'.join(f'{_LONG} {_CACHED} cache-show picked testmon'.split())})(?:[-=].*)?")
_SHORT = re.compile(r"-[xsvqlh]*(?:n(?!o)=?(?P<count>.*)|[df])")
_TAKES_A_VALUE = ("-k", "-m", "-c", "-p", "-o", "-W", "-r")
_WITHOUT_VALUE = """
    cache-clear co collect-in-virtualenv collect-only continue-on-collection-errors disable-plugin-autoload disable-pytest-warnings
    disable-warnings doctest-continue-on-failure doctest-ignore-import-errors doctest-modules exitfirst fixtures fixtures-per-test
    force-short-summary full-trace funcargs help keep-duplicates markers no-fold-skipped no-header no-showlocals no-summary noconftest
    pdb quiet runxfail setup-only setup-plan setup-show showlocals strict strict-config strict-markers trace trace-config verbose
    version xfail-tb"""
FLAGS = frozenset(f"--{name}" for name in _WITHOUT_VALUE.split())
"""pytest's own options that take no value: an argument after one is a path. They choose no tests."""
_WITH_VALUE = """
    assert basetemp cache-show capture code-highlight color config-file confcutdir debug doctest-glob doctest-report durations durations-min
    import-mode junit-prefix junit-xml junitprefix junitxml log-auto-indent log-cli-date-format log-cli-format log-cli-level log-date-format
    log-disable log-file log-file-date-format log-file-format log-file-level log-file-mode log-format log-level max-warnings
    maxfail override-ini pastebin pdbcls pythonwarnings report-chars rootdir show-capture tb verbosity"""
VALUED = frozenset(f"--{name}" for name in _WITH_VALUE.split())
"""pytest's own options with a value that choose no tests."""
SELECTING = frozenset(f"--{name}" for name in ("deselect", "ignore", "ignore-glob", "pyargs"))
"""pytest's own options that choose tests, besides -k and -m."""


def _named(arguments: Sequence[str], root: Path) -> list[tuple[str, Path]]:
    """Return the arguments that name an existing file, folder or test, and where that is."""
    found = []
    for before, argument in zip(("", *arguments), arguments, strict=False):
        if argument.startswith("-") or before in _TAKES_A_VALUE or before == "--deselect":
            continue
        # A plugin's option may take a value; one with :: is hardly anything but a test.
        if before.startswith("--") and "=" not in before and before not in FLAGS | {"--pyargs"} and "::" not in argument:
            continue
        base = argument.partition("[")[0].split("::")[0]
        if base and (root / base).exists():
            found.append((argument, (root / base).resolve()))
    return found


def _is_within(path: Path, package: Package, root: Path) -> bool:
    folder = (root / package.path).resolve()
    return path == folder or folder in path.parents


def paths_within(package: Package, arguments: Sequence[str], root: Path) -> list[str]:
    """Return the arguments that name an existing file, folder or test within the package."""
    return [argument for argument, path in _named(arguments, root) if _is_within(path, package, root)]


def check_paths(packages: Sequence[Package], arguments: Sequence[str], root: Path) -> None:
    """Raise UsageError for a path in none of `packages`: each one's pytest would run it, on the wrong database perhaps."""
    for argument, path in _named(arguments, root) if any(not package.command for package in packages) else ():
        if not any(_is_within(path, package, root) for package in packages):
            folders = ", ".join(package.path for package in packages)
            raise UsageError(f"{argument!r} lies in no package of this run", next=f"Name a folder, a file or a test in {folders}.")


def chooses_tests(arguments: Sequence[str], root: Path) -> bool:
    """Say whether `arguments` choose among the tests, or may: what an option of a plugin does is not known."""
    for before, argument in zip(("", *arguments), arguments, strict=False):
        option = argument.partition("=")[0]
        is_harmless = option in FLAGS | VALUED or re.fullmatch(r"-[xsvqlh]+|-[xsvqlh]*[cpoWr].*", argument)
        if argument.startswith("-") and before not in _TAKES_A_VALUE and not is_harmless:
            return True
    return bool(_named(arguments, root))


def check_serial(arguments: Sequence[str]) -> None:
    """Raise UsageError for an option that runs tests in several processes or by what an earlier run remembered."""
    for before, argument, after in zip(("", *arguments), arguments, (*arguments[1:], ""), strict=False):
        if before in _TAKES_A_VALUE:
            continue
        short = _SHORT.fullmatch(argument)
        is_none = short is not None and (short["count"] or after) == "0"
        if _REFUSED.fullmatch(argument) or (short and not is_none):
            raise UsageError(
                f"{argument!r} does not go with a serial run in which nothing is remembered",
                next="Leave it out: packages run one after another, every test anew; `--shard I/N` spreads them over machines.",
            )
