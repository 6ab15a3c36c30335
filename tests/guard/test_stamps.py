"""The stamp: what carries none, or somebody else's, is neither dropped nor renamed."""

from __future__ import annotations

import json

import pytest

from harness.targets import Stamp
from tests.builders import SampleRepository, ScratchCluster, literal, untouched
from tests.guard.conftest import verdict

STRANGE = {
    "no comment": None,
    "somebody's comment": "the shop's test database, ask Anna",
    "an empty comment": "",
    "JSON of another kind": '{"worktree": "/w", "role": "test"}',
    "a JSON list": "[1, 2]",
    "broken JSON": '{"pgharness": 1, "role": "test"',
    "deep JSON": "[" * 5000,
    "a later format": '{"pgharness": 2, "role": "test", "repository": "r", "worktree": "{root}", "fingerprint": "f", "time": 1}',
    "a missing key": '{"pgharness": 1, "role": "test", "repository": "r", "worktree": "{root}", "fingerprint": "f"}',
    "one key more": '{"pgharness": 1, "role": "test", "repository": "r", "worktree": "{root}", "fingerprint": "f", "time": 1, "x": 1}',
    "another worktree": '{"pgharness": 1, "role": "test", "repository": "r", "worktree": "/elsewhere", "fingerprint": "f", "time": 1}',
    "a longer path": '{"pgharness": 1, "role": "test", "repository": "r", "worktree": "{root}/x", "fingerprint": "f", "time": 1}',
    "another role": '{"pgharness": 1, "role": "e2e", "repository": "r", "worktree": "{root}", "fingerprint": "f", "time": 1}',
}


def comment(cluster: ScratchCluster, name: str) -> str | None:
    """Return a database's comment."""
    found = cluster.value(f"SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = {literal(name)}")
    return None if found is None else str(found)


@pytest.mark.parametrize("text", STRANGE.values(), ids=STRANGE)
def test_a_database_without_our_stamp_is_left_alone(witnessed: SampleRepository, text: str | None) -> None:
    """Missing, foreign and unreadable stamps: exit 3 naming the database and the way on; the comment stays."""
    assert witnessed.cluster is not None
    cluster = witnessed.cluster
    kept = comment(cluster, "shop_test")
    wanted = text and text.replace("{root}", str(witnessed.root.resolve()))
    cluster.execute(f"COMMENT ON DATABASE shop_test IS {'NULL' if wanted is None else literal(wanted)}")
    try:
        with untouched(cluster, "shop", "shop_test", "shop_e2e"):
            verdict(witnessed).expect(3, "database 'shop_test' (TEST_DATABASE_URL) exists", "inv reset --adopt shop_test")
        assert comment(cluster, "shop_test") == (wanted or None)
    finally:
        cluster.execute(f"COMMENT ON DATABASE shop_test IS {literal(kept or '')}")


def test_a_foreign_stamp_is_named(witnessed: SampleRepository) -> None:
    """Another worktree's database says whose it is."""
    assert witnessed.cluster is not None
    oid = witnessed.cluster.create_database("theirs_test", "dev")
    stamp = Stamp("test", "/r", "/home/anna/their shop", "f", 1.0)
    witnessed.cluster.execute(f"COMMENT ON DATABASE theirs_test IS {literal(stamp.text())}")
    witnessed.env_file({"TEST_DATABASE_URL": witnessed.cluster.dsn("dev", "theirs_test")})
    verdict(witnessed).expect(3, "belongs to worktree '/home/anna/their shop' as its test database")
    assert witnessed.cluster.oid("theirs_test") == oid


@pytest.mark.parametrize("command", [("reset",), ("test",)])
def test_one_unstamped_database_keeps_both(witnessed: SampleRepository, command: tuple[str, ...]) -> None:
    """What is refused for one class is refused before the other is touched; no test starts."""
    assert witnessed.cluster is not None
    kept = comment(witnessed.cluster, "shop_e2e")
    witnessed.cluster.execute("COMMENT ON DATABASE shop_e2e IS NULL")
    try:
        with untouched(witnessed.cluster, "shop", "shop_test", "shop_e2e"):
            done = witnessed.run(*command, *(("--e2e",) if command == ("test",) else ())).expect(3, "'shop_e2e'")
        assert "passed" not in done.output
    finally:
        witnessed.cluster.execute(f"COMMENT ON DATABASE shop_e2e IS {literal(kept or '')}")


def test_a_clone_has_no_stamp(witnessed: SampleRepository) -> None:
    """A copy of a test database made by CREATE DATABASE … TEMPLATE is nobody's to drop."""
    assert witnessed.cluster is not None
    cluster = witnessed.cluster
    cluster.execute("CREATE DATABASE copy_test TEMPLATE shop_test OWNER dev")
    assert comment(cluster, "copy_test") is None
    oid = cluster.oid("copy_test")
    witnessed.env_file({"TEST_DATABASE_URL": cluster.dsn("dev", "copy_test")})
    verdict(witnessed).expect(3, "'copy_test'", "carries no stamp")
    assert cluster.oid("copy_test") == oid


@pytest.mark.parametrize("name", ["shop", "postgres", "template1", "nowhere", "SHOP_TEST"])
def test_only_a_configured_test_database_is_adopted(witnessed: SampleRepository, name: str) -> None:
    """--adopt takes the name of test/.env's own test or e2e database and nothing else."""
    assert witnessed.cluster is not None
    with untouched(witnessed.cluster, "shop", "shop_test", "shop_e2e"):
        verdict(witnessed, adopt=name).expect(2, repr(name), "shop_test or shop_e2e")


def test_the_stamp_says_what_g1_promises(witnessed: SampleRepository) -> None:
    """Format, role, repository, worktree, fingerprint and time stand in the database's comment."""
    assert witnessed.cluster is not None
    text = comment(witnessed.cluster, "shop_e2e")
    found = json.loads(text or "")
    assert (found["pgharness"], found["role"], found["worktree"]) == (1, "e2e", str(witnessed.root.resolve()))
    assert len(found["fingerprint"]) == 64
    assert found["repository"]
    assert isinstance(found["time"], float)
