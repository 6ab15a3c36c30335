"""What a package's child is given: its command line and its environment."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.arguments import paths_within
from harness.bytecode import PREFIX
from harness.children import MARK
from harness.commands import expand
from harness.outcomes import APPLICATION, BYTECODE, OUTCOMES, VARIABLES
from harness.settings import Package, Settings
from harness.targets import HIDDEN

if TYPE_CHECKING:
    from harness.envfile import Env

_GONE = ("PG", "GIT_", "HARNESS_", "PYTEST_XDIST_")
_GONE_BY_NAME = (
    "PYTEST_ADDOPTS",
    "PYTEST_CURRENT_TEST",
    "PYTEST_VERSION",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONOPTIMIZE",
    "PYTHONINSPECT",
    PREFIX,
)


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
