"""status, doctor and stack-list: what is said of a cluster, and of each thing that can be wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.place import Place


def document(place: Place, task: str, code: int) -> dict[str, Any]:
    """Return a task's JSON document."""
    found: dict[str, Any] = json.loads(place.run(task, "--json", "-", command="harness").expect(code).stdout)
    return found


def test_status_tells_what_is_up(place: Place) -> None:
    """Before, while it runs, and stopped; with the databases' stamps and sessions."""
    assert document(place, "status", 5)["cluster"]["state"] == "none"
    place.up().expect(0)
    place.run("reset", command="harness").expect(0)
    with place.connect("TEST_DATABASE_URL"):
        found = document(place, "status", 0)
    record = place.record
    assert found["cluster"] == {
        "state": "up",
        "port": record["port"],
        "pid": place.postmaster(),
        "major": record["major"],
        "data": str(place.data),
        "system_identifier": record["system_identifier"],
    }
    databases = {database["role"]: database for database in found["databases"]}
    assert {role: database["name"] for role, database in databases.items()} == {
        "application": "shop",
        "test": "shop_test",
        "e2e": "shop_e2e",
        "maintenance": "postgres",
    }
    assert databases["test"]["stamp"]["worktree"] == str(place.root)
    assert databases["test"]["sessions"] == 1
    assert databases["application"]["stamp"] is None
    assert found["lock"] is None
    assert found["root"] == str(place.root)
    place.run("stack-down", command="harness").expect(0)
    assert document(place, "status", 5)["cluster"]["state"] == "down"


def test_doctor_finds_nothing_wrong_after_a_bootstrap(place: Place) -> None:
    """Each check is a line, and the exit code is 0."""
    place.bootstrap().expect(0)
    checks = document(place, "doctor", 0)["checks"]
    assert [check for check in checks if not check["ok"] or check["next"]] == []
    assert {"harness.toml", "test/.env", "data folder", "connection", "test database", "e2e rights", "doors"} <= {
        check["check"] for check in checks
    }


@pytest.mark.parametrize(
    ("break_it", "check", "finding", "advice"),
    [
        (lambda place: (place.root / "test/.env").unlink(), "test/.env", "there is no", "bootstrap-stack.sh"),
        (lambda place: place.settings("[databases]\nnonsense = 1\n"), "harness.toml", "nonsense", "Known here"),
        (lambda place: place.migration("0001_twin.sql", "SELECT 1;"), "migrations", "0001", ""),
        (lambda place: place.run("stack-down", command="harness"), "data folder", "is stopped", "inv stack-up"),
        (lambda place: place.execute("GRANT CONNECT ON DATABASE shop TO PUBLIC"), "doors", "'shop'", "inv stack-up"),
        (
            lambda place: place.execute("COMMENT ON DATABASE shop_test IS 'mine'"),
            "test database",
            "no stamp",
            "--adopt shop_test",
        ),
        (lambda place: (place.data / "pgharness.json").unlink(), "data folder", "no cluster", "bootstrap-stack.sh"),
        (lambda place: place.settings((place.root / "harness.toml").read_text() + "major = 99\n"), "server", "asks for 99", "Install"),
    ],
    ids=["no test/.env", "broken toml", "twin migrations", "stopped", "an open door", "no stamp", "no record", "another version"],
)
def test_doctor_names_what_is_wrong(break_it: Callable[[Place], object], check: str, finding: str, advice: str, place: Place) -> None:
    """One fault, its check, its finding and what mends it; exit 5."""
    place.bootstrap().expect(0)
    break_it(place)
    checks = {found["check"]: found for found in document(place, "doctor", 5)["checks"]}
    assert not checks[check]["ok"]
    assert finding in checks[check]["finding"]
    assert advice in checks[check]["next"]


def test_the_list_names_every_worktree(make_place: Callable[..., Place]) -> None:
    """Path, port, state, size and age of each, up or stopped."""
    up, stopped = make_place("up"), make_place("stopped")
    for place in (up, stopped):
        place.up().expect(0)
    stopped.run("stack-down", command="harness").expect(0)
    found = {held["path"]: held for held in document(up, "stack-list", 0)["worktrees"]}
    assert {path: (held["state"], held["port"]) for path, held in found.items()} == {
        str(up.root): ("up", up.record["port"]),
        str(stopped.root): ("stopped", stopped.record["port"]),
    }
    for held in found.values():
        assert held["bytes"] > 10_000_000
        assert 0 < held["age"] < 600
