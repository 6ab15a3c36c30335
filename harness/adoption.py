"""What a person's shell and editor need: exports, aliases, a client's command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from harness.errors import UsageError
from harness.targets import Dsn

DEFAULT_PREFIX = "h"
ALIASES = {"reset": "reset", "test": "test", "e2e": "test --e2e", "status": "status", "psql": "psql"}


def exports(variables: Mapping[str, str]) -> str:
    """Return `export NAME=VALUE` lines that bash and zsh read back byte for byte."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())


def aliases(prefix: str) -> str:
    """Return shell functions and aliases for bash and zsh that call the current worktree's own `inv`, wherever in it one stands.

    `PREFIXinv` takes any task; it and `inv` are completed by the tasks of the worktree one stands in.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", prefix):
        raise UsageError(f"--prefix is {prefix!r}", next="Give letters, digits and underscores.")
    finder = f"_{prefix}_inv"
    lines = [
        f"{finder}() {{",
        '  _harness_folder="$PWD"',
        '  while [ -n "$_harness_folder" ] && [ ! -x "$_harness_folder/.venv/bin/inv" ]; do _harness_folder="${_harness_folder%/*}"; done',
        '  if [ -z "$_harness_folder" ]; then echo "no .venv/bin/inv here or above; run test/bootstrap-stack.sh" >&2; return 2; fi',
        '  "$_harness_folder/.venv/bin/inv" "$@"',
        "}",
        f'{finder}_words() {{ {finder} --complete -- "inv $*" 2>/dev/null; }}',
        'if [ -n "${ZSH_VERSION:-}" ]; then',
        f'  {finder}_complete() {{ read -r -cA _harness_words; reply=($({finder}_words "${{_harness_words[@]:1}}")); }}',
        f'  {finder}_add() {{ compadd -- $({finder}_words "${{words[@]:1}}"); }}',
        f"  if whence compdef >/dev/null; then compdef {finder}_add inv {prefix}inv {finder}",
        f"  else compctl -f -K {finder}_complete inv {prefix}inv {finder}; fi",
        "else",
        f"  {finder}_complete() {{",
        f'    COMPREPLY=($(compgen -W "$({finder}_words "${{COMP_WORDS[@]:1}}")" -- "$2"))',
        "  }",
        f"  complete -o default -F {finder}_complete inv {prefix}inv",
        "fi",
        f"alias {prefix}inv='{finder}'",
    ]
    lines += [f"alias {prefix}{name}='{finder} {command}'" for name, command in ALIASES.items()]
    return "\n".join(lines)


def psql_environment(dsn: Dsn, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which a bare `psql` opens `dsn`: its password stands in no process's arguments."""
    found = {name: value for name, value in base.items() if not name.startswith("PG")}
    known = {"PGHOST": dsn.host, "PGHOSTADDR": dsn.hostaddr, "PGPORT": str(dsn.port), "PGUSER": dsn.user, "PGPASSWORD": dsn.password}
    known |= {"PGDATABASE": dsn.name} | {f"PG{key.upper().replace('_', '')}": value for key, value in dsn.extra if key.startswith("ssl")}
    return found | {name: value for name, value in known.items() if value}
