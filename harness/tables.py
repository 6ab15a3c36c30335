"""A TOML table read strictly: every key known, every value of the form asked for, every fault told with file, table and key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from harness.errors import UsageError


class Table:
    """A TOML table being read: each key is taken once, and what is left over at the end is an error."""

    def __init__(self, file: str, where: str, value: object) -> None:
        self.file, self.where = file, where
        if not isinstance(value, dict):
            self.fail(f"is {_shown(value)}, not a table", "Write it as a table.")
        self.left: dict[str, Any] = dict(value)
        self.known: list[str] = []

    def fail(self, finding: str, advice: str) -> NoReturn:
        """Raise UsageError with file and table before the finding."""
        raise UsageError(f"{self.file}: {self.where or 'the file'} {finding}", next=advice)

    def take(self, key: str, read: Callable[[Any], Any], wanted: str, default: Any) -> Any:
        """Return the key's value as `read` makes it of what is written, or the default."""
        self.known.append(key)
        if key not in self.left:
            return default
        value = self.left.pop(key)
        try:
            return read(value)
        except (TypeError, ValueError):
            self.fail(f"{key} is {_shown(value)}", f"It takes {wanted}.")

    def table(self, key: str) -> Table:
        """Return the inner table of this name, empty where there is none."""
        self.known.append(key)
        where = f"{self.where[:-1]}.{key}]" if self.where else f"[{key}]"
        return Table(self.file, where, self.left.pop(key, {}))

    def tables(self, key: str) -> list[Table]:
        """Return the tables of an array of tables."""
        items = self.take(key, a_list, f"tables, each headed [[{key}]]", [])
        return [Table(self.file, f"[[{key}]] number {number}", item) for number, item in enumerate(items, 1)]

    def finish(self) -> None:
        """Raise UsageError for a key that nobody took, with the nearest known one."""
        for key in self.left:
            import difflib

            near = difflib.get_close_matches(key, self.known, n=1, cutoff=0.5)
            meant = f"Did you mean {near[0]!r}?" if near else f"Known here: {', '.join(self.known)}."
            self.fail(f"has the unknown key {key!r}", meant)


def _shown(value: object) -> str:
    """Return the value as written, less the password of a DSN that stands in the wrong place."""
    import re

    return re.sub(r"://[^\s/]*@", "://***@", repr(value))


def a_text(value: object) -> str:
    """Return text without a NUL."""
    if not isinstance(value, str) or "\0" in value:
        raise TypeError
    return value


def a_name(value: object) -> str:
    """Return text that is not blank."""
    text = a_text(value)
    if not text.strip():
        raise ValueError
    return text


def a_database_name(value: object) -> str:
    """Return a database's name, not a DSN."""
    text = a_name(value)
    if "://" in text:
        raise ValueError
    return text


def a_variable(value: object) -> str:
    """Return the name of an environment variable."""
    import re

    text = a_text(value)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise ValueError
    return text


def a_flag(value: object) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise TypeError
    return value


def a_setting(value: object) -> str:
    """Return a server setting as the text that the server's command line takes."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) if isinstance(value, (int, float)) else a_text(value)


def seconds(value: object) -> float:
    """Return a positive, finite number of seconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ValueError
    return float(value)


def major(value: object) -> int:
    """Return a major version of PostgreSQL that the harness supports."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 13:  # noqa: PLR2004  # WITH (FORCE) came with 13
        raise ValueError
    return value


def port_range(value: object) -> tuple[int, int]:
    """Return the first and last port of a range of unprivileged ones."""
    first, last = a_list(value)
    for port in (first, last):
        if isinstance(port, bool) or not isinstance(port, int) or not 1024 <= port <= 65535:  # noqa: PLR2004  # the unprivileged ports
            raise ValueError
    if first > last:
        raise ValueError
    return first, last


def a_list(value: object) -> list[Any]:
    """Return a list."""
    if not isinstance(value, list):
        raise TypeError
    return value


def texts(value: object) -> tuple[str, ...]:
    """Return a list of texts that are not blank."""
    return tuple(a_name(item) for item in a_list(value))


def an_argv(value: object) -> tuple[str, ...]:
    """Return a command's arguments, the program first."""
    arguments = tuple(a_text(item) for item in a_list(value))
    if not arguments or not arguments[0]:
        raise ValueError
    return arguments


def one_of(*allowed: str) -> Callable[[object], str]:
    """Return a reader that takes one of these texts."""

    def read(value: object) -> str:
        if value not in allowed:
            raise ValueError
        return a_text(value)

    return read
