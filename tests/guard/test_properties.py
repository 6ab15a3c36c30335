"""Over generated spellings: whatever libpq would open as the application's database is refused, and nothing is opened on the way."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from urllib.parse import quote

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import database, guard
from harness.envfile import Env
from harness.errors import HarnessError, Refusal, StackFailure, UsageError
from harness.settings import DEFAULT_DATABASES, Run, Settings, Stack
from harness.targets import Dsn, Identity, Stamp, parse_dsn
from tests.builders import ScratchCluster, Sentinel, literal
from tests.guard.conftest import everywhere

pytestmark = pytest.mark.postgres  # a server of its own, not the package's

EXAMPLES = 2000
PASSWORD = "p@:/?#%&=+ '\"\\$é-secret"
NAMES = ("shop", "shop_test", "shop_e2e", "stranger", "absent", "postgres", "template1", "Shop", "shop ", "шоп")


class Ground(NamedTuple):
    """A server with the application's database, two of our own and a stranger's; and what it said of itself."""

    cluster: ScratchCluster
    root: Path
    server: database.Server
    databases: dict[str, database.DatabaseRow]

    def env(self, test: str, application: str) -> Env:
        """Return test/.env with these two texts; UsageError as the file's own reader raises it."""
        texts = {"application": ("MC_DB_DSN", application), "test": ("TEST_DATABASE_URL", test)}
        texts |= {"e2e": ("E2E_DATABASE_URL", self.cluster.dsn("dev", "shop_e2e"))}
        texts |= {"maintenance": ("MAINTENANCE_DATABASE_URL", self.cluster.dsn("dev"))}
        return Env(self.root, {role: parse_dsn(*text) for role, text in texts.items()}, None, ())

    def prove(self, env: Env) -> int | None:
        """Do as a reset does, up to its first statement that changes something; return the oid that it would replace."""
        values = Settings(self.root, DEFAULT_DATABASES, (), (), (), Run(), Stack())
        guard.prove_apart(env)
        proof = guard.gather(values, env, self.server, self.databases, lambda _: None)
        return guard.prove(proof, "test").oid

    def opened_by(self, text: str) -> Identity | None:
        """Return what libpq itself opens, with nothing of ours in between."""
        return _opened_by(text)


@functools.lru_cache(maxsize=5000)
def _opened_by(text: str) -> Identity | None:
    try:
        connection: psycopg.Connection[Any] = psycopg.connect(text, application_name="oracle", connect_timeout=5, autocommit=True)
    except psycopg.Error:
        return None
    with connection:
        query = "SELECT (SELECT system_identifier::text FROM pg_control_system()), oid FROM pg_database WHERE datname = current_database()"
        row = connection.execute(query).fetchone()
    assert row is not None
    return Identity(*row)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """Make the databases on a server that asks for no password, watch the application's, and in the end read the server's log."""
    root = tmp_path_factory.mktemp("ground")
    with ScratchCluster(auth="trust", listen=everywhere(), sockets=True) as cluster:
        yield from _laid_out(cluster, root)


def _laid_out(cluster: ScratchCluster, root: Path) -> Iterator[Ground]:
    cluster.create_role("dev", "LOGIN CREATEDB", password=PASSWORD)
    for name in ("shop", "shop_test", "shop_e2e", "stranger", "Shop", "shop ", "шоп"):
        cluster.create_database(name, "dev")
    for role, name in (("test", "shop_test"), ("e2e", "shop_e2e")):
        cluster.execute(f"COMMENT ON DATABASE {name} IS {literal(Stamp(role, 'r', str(root), 'f', 1.0).text())}")
    with Sentinel(cluster):
        begin = len(cluster.log())
        with database.connect(parse_dsn("MAINTENANCE_DATABASE_URL", cluster.dsn("dev")), purpose="run") as connection:
            yield Ground(cluster, root, database.ask_server(connection), database.ask_databases(connection))
        _check_log(cluster.log()[begin:])
    _opened_by.cache_clear()


def _check_log(log: str) -> None:
    """Assert that nobody but the oracle, the sentinel and our question for identity came to the application's database."""
    sessions = re.findall(r"connection authorized: user=\S+ database=shop application_name=(.*?)(?: SSL.*)?$", log, re.MULTILINE)
    assert "harness identity" in sessions
    assert set(sessions) <= {"harness identity", "oracle", "app-sentinel"}


def percent_encoded(text: str, draw: Random) -> str:
    """Encode what must be, and of the rest nothing, something or all, in digits of either case."""
    share = draw.choice([0.0, 0.0, 0.5, 1.0])
    parts = []
    for character in text:
        if quote(character, safe="") != character or draw.random() < share:
            digits = "".join(f"%{byte:02x}" for byte in character.encode())
            parts.append(digits.upper() if draw.random() < 0.5 else digits)
        else:
            parts.append(character)
    return "".join(parts)


def conninfo_value(text: str, quoted: bool) -> str:  # noqa: FBT001  # two forms of one thing
    """Return a value of the keyword form."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'" if quoted or not text or " " in text else escaped


class Spelling(NamedTuple):
    """One DSN, drawn without a cluster: `text` has the placeholders of `fill`."""

    text: str

    def fill(self, cluster: ScratchCluster) -> str:
        """Return the text with the cluster's port and socket."""
        sock = str(cluster.sockets)
        return self.text.replace("\1", str(cluster.port)).replace("\2", sock).replace("\3", quote(sock, safe=""))


HOSTS = ("127.0.0.1", "localhost", "LocalHost", "127.1", "127.0.0.2", "[::1]", "%31%32%37.0.0.1", "\3", "0.0.0.0", "2130706433")  # noqa: S104  # a way to say 127.0.0.1
PLAIN_HOSTS = ("127.0.0.1", "localhost", "127.1", "::1", "\2", "127.0.0.2")
EXTRAS = ("application_name=x", "sslmode=disable", "options=-csearch_path%3Dpublic", "connect_timeout=4", "ssl=false")
DOUBLES = (
    "dbname=shop",
    "host=127.0.0.1",
    "port=\1",
    "user=dev",
    "hostaddr=127.0.0.1",
    "service=prod",
    "schema=public",
    "dbname=shop_test",
    "%64bname=shop",
)


def url(draw: Random) -> Spelling:
    """Make a URL: any part in its place or as a parameter, encoded more or less, some doubled, some broken."""
    name, user = draw.choice(NAMES), draw.choice(["dev", "dev", "dev", "su", ""])
    login = percent_encoded(user, draw)
    if user == "dev" and draw.random() < 0.9:
        login += ":" + (percent_encoded(PASSWORD, draw) if draw.random() < 0.95 else quote(PASSWORD, safe="@/?#%&=+$:"))
    host, query = draw.choice((*HOSTS, "")), []
    if not host:
        query.append("host=" + draw.choice(("127.0.0.1", "localhost", "\3", "\2")))
    port = draw.choice([":\1"] * 6 + ["", "", ":1"])
    if not port:  # libpq's default may be somebody's real server
        query.append("port=\1")
    encoded = percent_encoded(name, draw)
    path = draw.choice([f"/{encoded}"] * 4 + ["", "/"])
    if path in ("", "/") and draw.random() < 0.8:
        query.append(f"dbname={encoded}")
    query += draw.sample(EXTRAS, draw.choice([0, 0, 1, 2])) + draw.sample(DOUBLES, draw.random() < 0.1)
    draw.shuffle(query)
    scheme = draw.choice(["postgresql"] * 5 + ["postgres"] * 2 + ["postgresql+psycopg", "POSTGRESQL"][: draw.randrange(2)])
    return Spelling(f"{scheme}://{login}{'@' if login else ''}{host}{port}{path}" + ("?" + "&".join(query) if query else ""))


def keywords(draw: Random) -> Spelling:
    """Make the keyword form: any order, quotes, blanks around the sign, some keys doubled or missing."""
    pairs = [("host", draw.choice(PLAIN_HOSTS)), ("dbname", draw.choice(NAMES))]
    pairs += draw.choice([[("user", "dev"), ("password", PASSWORD)]] * 4 + [[("user", "su"), ("password", "su-secret-9041")]])
    pairs += draw.sample([("application_name", "a' dbname=shop"), ("sslmode", "prefer")], draw.choice([0, 0, 1, 2]))
    pairs += [("dbname", "shop")] if draw.random() < 0.1 else []
    if draw.random() < 0.1:
        pairs.remove(draw.choice(pairs))
    if draw.random() < 0.1:
        pairs = [(key if key != "host" else "hostaddr", value) for key, value in pairs]
    pairs.append(("port", "\1"))
    draw.shuffle(pairs)
    blanks = ["", "", "", " ", "  ", "\t", "\n"]
    written = [f"{key}{draw.choice(blanks)}={draw.choice(blanks)}{conninfo_value(value, draw.random() < 0.5)}" for key, value in pairs]
    return Spelling(" ".join(written))


def _spelling(seed: int) -> Spelling:
    draw = Random(seed)
    return url(draw) if draw.random() < 0.7 else keywords(draw)


SPELLINGS = st.integers(0, 2**32).map(_spelling)
"""Made from a seed: drawing every character by itself took longer than asking the server."""


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
@given(SPELLINGS, st.one_of(st.none(), SPELLINGS))
def test_spellings(ground: Ground, test: Spelling, application: Spelling | None) -> None:
    """The application's database is refused, whichever of the two is spelled how; what is accepted is what libpq opens."""
    texts = test.fill(ground.cluster), application.fill(ground.cluster) if application else ground.cluster.dsn("dev", "shop")
    try:
        env = ground.env(*texts)
        accepted, told = ground.prove(env), ""
    except HarnessError as refusal:
        accepted, told = None, str(refusal)
    assert PASSWORD not in told
    assert quote(PASSWORD, safe="") not in told
    if told:
        return
    assert accepted in (None, ground.databases["shop_test"].oid)
    opened = ground.opened_by(texts[0])
    if opened is not None:
        assert opened == Identity(ground.server.system_identifier, accepted or 0)
        assert opened != ground.opened_by(texts[1])


@settings(max_examples=EXAMPLES // 4, suppress_health_check=[HealthCheck.too_slow])
@given(SPELLINGS)
def test_spellings_of_the_test_database_are_not_refused_for_nothing(ground: Ground, test: Spelling) -> None:
    """A DSN that is understood and opens our own test database is accepted: the guard does not refuse by taste."""
    text = test.fill(ground.cluster)
    try:
        dsn: Dsn = parse_dsn("TEST_DATABASE_URL", text)
    except UsageError:
        return
    if dsn.name != "shop_test" or ground.opened_by(text) is None:
        return
    oid = ground.prove(ground.env(text, ground.cluster.dsn("dev", "shop")))
    assert oid == ground.databases["shop_test"].oid


def test_the_generator_reaches_every_case(ground: Ground) -> None:
    """Each kind of refusal, and acceptance, comes up among the drawn spellings: the properties above are not empty."""
    seen: set[str] = set()

    @settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
    @given(SPELLINGS)
    def draw(test: Spelling) -> None:
        text = test.fill(ground.cluster)
        try:
            ground.prove(ground.env(text, ground.cluster.dsn("dev", "shop")))
            seen.add("accepted")
        except UsageError:
            seen.add("its text")
        except StackFailure:
            seen.add("nobody there")
        except Refusal as refusal:
            seen.update(kind for kind in ("the same database", "maintenance or template", "no stamp") if kind in refusal.message)

    draw()
    assert seen == {"accepted", "its text", "nobody there", "the same database", "maintenance or template", "no stamp"}
