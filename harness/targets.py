"""Where a statement may go: connection strings that never show their password, identities, stamps, derived names."""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import NamedTuple
from urllib.parse import quote, urlencode

from harness.errors import UsageError, conceal, redact

NAME_LIMIT = 63
"""PostgreSQL cuts a longer identifier with a NOTICE, and then names another database."""

MAX_PORT = 65535

HIDDEN = "postgresql://application-database-is-hidden-from-tests.invalid/hidden"
"""What a package sees instead of the application's DSN."""

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?]*)(?P<path>[^?]*)(?:\?(?P<query>.*))?", re.DOTALL)
_BROKEN_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_PAIR = re.compile(r"(\w+)\s*=\s*(?:'(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)*)", re.DOTALL)
_ENCODE = "Percent-encode special characters in the user name and password: @ is %40, / is %2F, ? is %3F, # is %23, % is %25."


class Dsn(NamedTuple):
    """A parsed connection string of one variable; `text` is what children receive, byte for byte."""

    variable: str
    text: str
    host: str
    hostaddr: str
    port: int
    user: str
    password: str
    name: str
    extra: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        """Show everything but the password."""
        return f"<{self.variable} {self.user}@{self.where}>"

    def __str__(self) -> str:
        return repr(self)

    @property
    def where(self) -> str:
        """host:port/name, safe to print."""
        return f"{self.host or self.hostaddr}:{self.port}/{self.name}"

    @property
    def label(self) -> str:
        """The variable and where it leads, safe to print."""
        return f"{self.variable} ({self.where})"

    @property
    def endpoint(self) -> tuple[str, str, int]:
        """What decides which server answers."""
        return (self.host, self.hostaddr, self.port)

    def at(self, name: str) -> Dsn:
        """Return the same server, role and options with another database."""
        other = self._replace(name=name)
        return other._replace(text=other.url())

    def url(self, scheme: str = "postgresql") -> str:
        """Return the URL that other tools read, every part percent-encoded."""
        login = quote(self.user, safe="") + (f":{quote(self.password, safe='')}" if self.password else "")
        extra = dict(self.extra)
        if self.host.startswith(("/", "@")):
            host, extra = "", {"host": self.host, "port": str(self.port), **extra}
        else:
            host = f"[{quote(self.host, safe=':')}]" if ":" in self.host else quote(self.host, safe="")
            host += f":{self.port}"
        if self.hostaddr:
            extra = {"hostaddr": self.hostaddr, **extra}
        query = f"?{urlencode(extra, quote_via=quote)}" if extra else ""
        return f"{scheme}://{login}@{host}/{quote(self.name, safe='')}{query}"

    def parameters(self) -> dict[str, str]:
        """Return libpq's connection parameters, with nothing left for its environment to fill in."""
        given = {"host": self.host, "hostaddr": self.hostaddr, "port": str(self.port), "user": self.user}
        given |= {"password": self.password, "dbname": self.name, **dict(self.extra)}
        return {key: value for key, value in given.items() if value}


def parse_dsn(variable: str, text: str) -> Dsn:
    """Parse `text` by libpq's rules.

    Raises UsageError, without a part of the password, for what libpq and other drivers would read differently, for a
    missing host or database name, several hosts, a service, and names over 63 bytes.
    """
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.pq import Conninfo

    _check_form(variable, text, {option.keyword.decode() for option in Conninfo.get_defaults()})
    try:
        found = {key: str(value) for key, value in conninfo_to_dict(text).items() if value not in (None, "")}
    except ProgrammingError:
        raise UsageError(f"{variable} is not a connection string that libpq reads", next=_ENCODE) from None
    except UnicodeError:
        raise UsageError(
            f"{variable} is not UTF-8", next="Percent-encode the UTF-8 bytes of each special character: é is %C3%A9."
        ) from None
    password = found.pop("password", "")
    conceal(password)
    conceal(found.get("sslpassword", ""))
    if "service" in found:
        raise UsageError(f"{variable} names a service", next="Write its host, port, user and database into the URL.")
    host, hostaddr, name = found.pop("host", ""), found.pop("hostaddr", ""), found.pop("dbname", "")
    user = found.pop("user", "") or _operating_system_user()
    if not host and not hostaddr:
        raise UsageError(f"{variable} names no host", next=f"Write the host into it: {_SHAPE}.")
    if "@" in host[1:]:  # at its start it is an abstract socket
        raise UsageError(f"{variable} has an unencoded '@' in its password", next=_ENCODE)
    if "," in host + hostaddr:
        raise UsageError(f"{variable} names several hosts", next="Name the one server to act on.")
    if host and hostaddr:
        raise UsageError(f"{variable} names host and hostaddr", next="Keep one: drivers disagree on which one counts.")
    if not name:
        raise UsageError(f"{variable} names no database", next=f"Write its name into it: {_SHAPE}.")
    if "://" in name or ("=" in name and " " in name):
        raise UsageError(f"{variable} has a connection string for a database name", next=f"Write {_SHAPE}.")
    check_name(name, variable)
    return Dsn(variable, text, host, hostaddr, _port(variable, found.pop("port", "5432")), user, password, name, tuple(found.items()))


_SHAPE = "postgresql://user:password@host:port/name"


def _check_form(variable: str, text: str, keywords: set[str]) -> None:
    if "\0" in text:  # libpq would read no further
        raise UsageError(f"{variable} has a NUL", next=f"Write {_SHAPE}.")
    match = _URL.fullmatch(text)
    if match is None:
        _refuse_doubles(variable, _PAIR.findall(text), set())
        return
    if match["scheme"] not in ("postgresql", "postgres"):
        form = f"{match['scheme']}://"
        raise UsageError(
            f"{variable} begins with {form!r}", next="Write postgresql://; harness.toml's [environment] has {url:SCHEME} for other tools."
        )
    if _BROKEN_PERCENT.search(text):
        raise UsageError(f"{variable} has a '%' that begins no percent-encoding", next=_ENCODE)
    behind = (match["path"] or "") + (match["query"] or "")
    if match["authority"].count("@") > 1 or ("@" in behind and "@" not in match["authority"]):
        raise UsageError(f"{variable} has an unencoded '@', '/' or '?' in its user name or password", next=_ENCODE)
    for character in text:
        if character in '#\\"<>^`{}|' or character.isspace() or not character.isprintable():
            raise UsageError(f"{variable} has an unencoded {character!r}", next=_ENCODE)
    _check_query(variable, match, keywords)


def _check_query(variable: str, match: re.Match[str], keywords: set[str]) -> None:
    authority, seen = match["authority"], set()
    login, _, address = authority.rpartition("@")
    if match["path"].strip("/"):
        seen.add("dbname")
    if address:
        seen.add("host")
    if re.search(r":\d+$", address):
        seen.add("port")
    if login:
        seen.add("user")
    if ":" in login:
        seen.add("password")
    keys = [part.partition("=")[0] for part in (match["query"] or "").split("&")]
    for key in keys:
        if key and key not in keywords and key != "ssl":
            raise UsageError(
                f"{variable} has the parameter {key!r}, which libpq does not know", next="Remove it: it belongs to another tool."
            )
    _refuse_doubles(variable, [key for key in keys if key], seen)


def _refuse_doubles(variable: str, keys: list[str], seen: set[str]) -> None:
    for key in keys:
        if key in seen:
            raise UsageError(f"{variable} says its {key} twice", next="Keep one: drivers disagree on which one counts.")
        seen.add(key)


def _port(variable: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= MAX_PORT:
        raise UsageError(f"{variable} has no usable port", next=f"Write {_SHAPE}; {_ENCODE}")
    return int(text)


def check_parameters(dsn: Dsn) -> None:
    """Raise UsageError for a parameter whose value no connection could be opened with; asks libpq, and no server."""
    if not dsn.extra:
        return
    from psycopg.conninfo import make_conninfo
    from psycopg.pq import PGconn, Ping

    nowhere = make_conninfo(host=os.devnull, **dict(dsn.extra)).encode()  # nothing is below it: libpq goes no further than the values
    finding = PGconn.connect_start(nowhere).get_error_message() if PGconn.ping(nowhere) == Ping.NO_ATTEMPT else ""
    seconds = dict(dsn.extra).get("connect_timeout", "0")
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,9}\s*", seconds):  # psycopg reads it, not libpq
        finding = f"connect_timeout {seconds!r} is no number of seconds"
    if finding:
        raise UsageError(
            f"{dsn.label}: {redact(' '.join(finding.split()))}", next=f"Mend that parameter in {dsn.variable}: no server was asked."
        )


def _operating_system_user() -> str:
    from psycopg.pq import Conninfo

    defaults = {option.keyword: option.val for option in Conninfo.get_defaults()}
    return (defaults.get(b"user") or b"").decode()


def check_name(name: str, source: str) -> None:
    """Raise UsageError when PostgreSQL would cut `name`, and so act on another database."""
    size = len(name.encode())
    if size > NAME_LIMIT:
        raise UsageError(
            f"{source} names a database of {size} bytes; PostgreSQL cuts names at {NAME_LIMIT}, and that is another database",
            next="Choose a shorter name.",
        )


class Identity(NamedTuple):
    """What makes two spellings one database: the server's system identifier and the database's oid."""

    system_identifier: str
    oid: int


class Stamp(NamedTuple):
    """The comment on a database of ours: the only thing that makes it ours to drop."""

    role: str
    repository: str
    worktree: str
    fingerprint: str
    time: float

    def text(self) -> str:
        """Return the comment."""
        return json.dumps({"pgharness": 1, **self._asdict()}, ensure_ascii=False, sort_keys=True)


REPLACES = "replaces "
"""Begins the fingerprint of a database under construction; the oid of the one it will replace follows."""


def read_stamp(comment: str | None) -> Stamp | None:
    """Return the stamp in a database's comment, or None for a missing or unreadable one."""
    try:
        found = json.loads(comment or "null")
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.pop("pgharness", None) != 1 or set(found) != set(Stamp._fields):
        return None
    time = found.pop("time")
    if isinstance(time, bool) or not isinstance(time, (int, float)) or not all(isinstance(value, str) for value in found.values()):
        return None
    return Stamp(**found, time=time)


def derived_name(kind: str, digits: str) -> str:
    """Return `harness_<kind>_<16 hex digits>`; kind is new, old or tpl."""
    return f"harness_{kind}_{digits[:16]}"


def name_beside(kind: str, name: str) -> str:
    """Return the derived name beside the database `name`: one per name, so that its lock guards it and a killed run's is found."""
    return derived_name(kind, hashlib.sha256(name.encode()).hexdigest())


def is_derived(name: str) -> bool:
    """Say whether `name` is one that `derived_name` makes."""
    return re.fullmatch(r"harness_(new|old|tpl)_[0-9a-f]{16}", name) is not None


class SafeTarget(NamedTuple):
    """A database proven to be a test database of this worktree; made by `guard.prove` only.

    `oid` is None for a database that does not exist yet.
    """

    role: str
    dsn: Dsn
    oid: int | None
    stamp: Stamp | None
