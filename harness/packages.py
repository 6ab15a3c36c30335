"""What a package's child is given: its command line, its environment, and what a serial run forbids."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.bytecode import PREFIX
from harness.children import MARK
from harness.commands import expand
from harness.errors import UsageError
from harness.outcomes import APPLICATION, BYTECODE, OUTCOMES, VARIABLES
from harness.settings import Package, Settings
from harness.targets import HIDDEN

if TYPE_CHECKING:
    from harness.envfile import Env

_GONE = ("PG", "GIT_", "HARNESS_", "PYTEST_XDIST_")
_GONE_BY_NAME = ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "PYTEST_VERSION", "PYTHONDONTWRITEBYTECODE", PREFIX)
_LONG = "numprocesses maxprocesses dist tx looponfail workers tests-per-worker parallel-threads"
_CACHED = (
    "lf last-failed ff failed-first nf new-first lfnf last-failed-no-failures sw stepwise sw-skip stepwise-skip sw-reset stepwise-reset"
)
_REFUSED = re.compile(rf"--(?:{'|'.join(f'{_LONG} {_CACHED} cache-show picked testmon'.split())})(?:[-=].*)?")
_SHORT = re.compile(r"-[xsvqlh]*(?:n(?!o)=?(?P<count>.*)|[df])")


def child_environment(settings: Settings, role: str, env: Env, shell: Mapping[str, str]) -> dict[str, str]:
    """Return what a package of `role` sees: the shell's variables, but of all databases its own alone.

    The application's variable leads nowhere and says so; what steers libpq, git or pytest from outside is gone; [environment]
    comes last.
    """
    seen = {name: value for name, value in shell.items() if not name.startswith(_GONE) and name not in _GONE_BY_NAME}
    for database in settings.databases:
        seen.pop(database.variable, None)
    seen |= _this_interpreter(seen)
    seen["PYTHONDONTWRITEBYTECODE"] = "1"
    seen[settings.database("application").variable] = HIDDEN
    return seen | own_variables(settings, role, env)


def own_variables(settings: Settings, role: str, env: Env) -> dict[str, str]:
    """Return the variables of a class's own: its DSN byte for byte, then those of [environment]."""
    own = env.dsn(role)
    return {settings.database(role).variable: own.text, **{name: expand(value, own) for name, value in settings.environment}}


def _this_interpreter(seen: Mapping[str, str]) -> dict[str, str]:
    """Let a command find this environment's tools first, whichever environment the shell has activated."""
    if sys.prefix == sys.base_prefix:
        return {}
    folder = f"{sys.prefix}/bin"
    path = seen.get("PATH", "")
    return {"VIRTUAL_ENV": sys.prefix, "PATH": path if path.split(":")[0] == folder else f"{folder}:{path}"}


def run_environment(settings: Settings, package: Package, env: Env, shell: Mapping[str, str], *, mark: str, folder: Path) -> dict[str, str]:
    """Return `child_environment` with the run's private variables; `folder` is the package's own, made anew for this run."""
    seen = child_environment(settings, package.role, env, shell)
    seen[MARK] = f"{shell.get(MARK, '')}{mark}."
    if package.command:
        seen[PREFIX] = str(folder / "bytecode")
        seen["GOFLAGS"] = f"{seen.get('GOFLAGS', '')} -count=1 -p=1".strip()
        return seen
    seen[OUTCOMES] = str(folder / "outcomes")
    seen[BYTECODE] = str(folder / "bytecode")
    seen[VARIABLES] = json.dumps({database.role: database.variable for database in settings.databases})
    application = env.dsns.get("application")
    if application:
        host = application.host or application.hostaddr
        place = ("localhost" if host in ("127.0.0.1", "::1") else host, str(application.port), application.name)
        seen[APPLICATION] = "\n".join(place)
    return seen


def command_line(package: Package, arguments: Sequence[str], *, folder: Path, root: Path, is_coloured: bool) -> list[str]:
    """Return a package's argv; paths among `arguments` that lie in the package stand for the whole of it."""
    if package.command:
        return [*package.command, *arguments]
    argv = [sys.executable, "-m", "pytest", "-p", "harness.plugin", "-o", f"cache_dir={folder / 'cache'}"]
    if is_coloured:
        argv.append("--color=yes")
    return [*argv, *([] if paths_within(package, arguments, root) else [package.path]), *arguments]


class Prepared(NamedTuple):
    """What a package's process is given, and the folder of its own, with a file `output` for what it prints when that is not shown at once."""

    folder: Path
    argv: list[str]
    env: dict[str, str]

    @property
    def output(self) -> Path:
        """The file for what it prints."""
        return self.folder / "output"


def prepare(
    settings: Settings,
    package: Package,
    env: Env,
    shell: Mapping[str, str],
    arguments: Sequence[str],
    mark: str,
    folder: Path,
    *,
    is_coloured: bool,
) -> Prepared:
    """Return what a package's process is given, the same each time; its folder is made the first time."""
    if not folder.exists():
        folder.mkdir()
        (folder / "output").touch()
    argv = command_line(package, arguments, folder=folder, root=settings.root, is_coloured=is_coloured)
    return Prepared(folder, argv, run_environment(settings, package, env, shell, mark=mark, folder=folder))


_TAKES_A_VALUE = ("-k", "-m", "-c", "-p", "-o", "-W", "-r")


def paths_within(package: Package, arguments: Sequence[str], root: Path) -> list[str]:
    """Return the arguments that name an existing file, folder or test within the package."""
    folder = (root / package.path).resolve()
    found = []
    for before, argument in zip(("", *arguments), arguments, strict=False):
        if argument.startswith("-") or before in _TAKES_A_VALUE or (before.startswith("--") and "=" not in before and "::" not in argument):
            continue
        base = argument.partition("[")[0].split("::")[0]
        path = (root / base).resolve()
        if base and path.exists() and (path == folder or folder in path.parents):
            found.append(argument)
    return found


def check_serial(arguments: Sequence[str]) -> None:
    """Raise UsageError for an option that runs tests in several processes or by what an earlier run remembered."""
    for before, argument in zip(("", *arguments), arguments, strict=False):
        if before in _TAKES_A_VALUE:
            continue
        short = _SHORT.fullmatch(argument)
        is_none = short is not None and (short["count"] or (arguments[arguments.index(argument) + 1 :] or [""])[0]) == "0"
        if _REFUSED.fullmatch(argument) or (short and not is_none):
            raise UsageError(
                f"{argument!r} does not go with a serial run in which nothing is remembered",
                next="Leave it out: packages run one after another, every test anew; `--shard I/N` spreads them over machines.",
            )
