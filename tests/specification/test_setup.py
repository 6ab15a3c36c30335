"""Scenarios 3, 10, 11 and 12: variables, the bootstrap, worktrees and migrators at once."""

from __future__ import annotations

import collections
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import tomli

from tests.builders import HARNESS_ROOT
from tests.specification.mission import APPLICATION, E2E, MAINTENANCE, PREFIX, TEST, Mission, outcomes

FILES = sorted(
    path.relative_to(HARNESS_ROOT) for stream in ("platform", "billing") for path in (HARNESS_ROOT / "migrations" / stream).iterdir()
)


def test_unset_variable(mission: Mission) -> None:
    """Without its variable a test skips and names the variable; the application's, which is set, is never taken instead."""
    env = {APPLICATION: mission.variables()[APPLICATION], "PYTHONDONTWRITEBYTECODE": "1"}
    done = mission.pytest(f"{PREFIX}orgs", f"{PREFIX}e2e/onboarding/test_reconcilers.py", "-p", "no:cacheprovider", env=env)
    done.expect(0, f"{TEST} is not set; run test/bootstrap-stack.sh", f"{E2E} is not set; run test/bootstrap-stack.sh")
    assert re.search(r"^\d\d skipped in", done.stdout, re.MULTILINE), done.stdout
    empty = mission.pytest(f"{PREFIX}orgs", "-p", "no:cacheprovider", env={**env, TEST: ""})
    empty.expect(0, f"{TEST} is not set")


def test_bootstrap_emits_the_dsns(mission: Mission) -> None:
    """test/.env has four DSNs on `MC_DB_DSN`'s port, those for tests naming other databases; made again, they are the same."""
    path = mission.root / "test/.env"
    before = path.read_text()
    path.unlink()
    bootstrap(mission)
    assert path.read_text() == before
    assert path.stat().st_mode & 0o777 == 0o600
    places = {name: re.fullmatch(r"postgresql://\S+@127\.0\.0\.1:(\d+)/(\w+)", mission.variables()[name]) for name in DSNS}
    assert {found[1] for found in places.values() if found} == {str(mission.record["port"])}
    assert [found[2] for found in places.values() if found] == ["hangar", "hangar_test", "hangar_e2e", "postgres"]
    assert set(mission.variables()) == {*DSNS, "HARNESS_WORKTREE"}
    assert {"hangar_test", "hangar_e2e"} <= set(mission.oids())


DSNS = (APPLICATION, TEST, E2E, MAINTENANCE)


def bootstrap(mission: Mission) -> None:
    """Run the script with this interpreter and this checkout's harness."""
    python = mission.folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(HARNESS_ROOT))} exec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    done = subprocess.run(
        [str(mission.root / "test/bootstrap-stack.sh"), "--python", str(python)],
        env=mission.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_reset_and_suite_read_the_dsns_from_the_file(mission: Mission) -> None:
    """Another database in test/.env is the one that is reset and that the packages run on."""
    before = mission.oids()
    with mission.changed({TEST: f"{mission.variables()[TEST]}_2"}):
        document = mission.document("test", "--package", f"{PREFIX}orgs", env=mission.watch())
        (seen,) = mission.observed()
    assert [database["name"] for database in document["databases"]] == ["hangar_test_2"]
    assert seen.before["current_database"] == ["hangar_test_2"]
    after = mission.oids()
    assert after.pop("hangar_test_2") not in before.values()
    assert after == before
    mission.ask("DROP DATABASE hangar_test_2")


def test_no_port_and_no_name_is_hard_coded() -> None:
    """Neither a database name of harness.toml nor a port stands in the code, the sample or its migrations."""
    names = tomli.loads((HARNESS_ROOT / "harness.toml").read_text())["databases"].values()
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, names))}|5432|1[78]\d\d\d)\b")
    allowed = {"harness/settings.py": {"17000", "17999"}, "harness/targets.py": {"5432"}}  # the default range, and libpq's own default
    files = [HARNESS_ROOT / "tasks.py", HARNESS_ROOT / "test/bootstrap-stack.sh"]
    for folder in ("harness", "migrations", "tests/mission_control"):
        files += [path for path in (HARNESS_ROOT / folder).rglob("*") if path.suffix in (".py", ".sql", ".sh", ".toml")]
    assert len(files) > 60
    found: dict[str, set[str]] = {}
    for path in files:
        name = path.relative_to(HARNESS_ROOT).as_posix()
        hits = set(pattern.findall(path.read_text())) - allowed.get(name, set())
        if hits:
            found[name] = hits
    assert found == {}


def test_two_worktrees(mission: Mission) -> None:
    """Two worktrees of one repository: each resets while the other's suite runs, acts on its own cluster only, and both suites are green."""
    other = second_worktree(mission)
    try:
        refused = other.harness("reset")
        assert refused.returncode in (2, 3), refused.output
        other.up()
        assert other.record["system_identifier"] != mission.record["system_identifier"]
        assert {other.variables()[name] for name in DSNS} & {mission.variables()[name] for name in DSNS} == set()
        reset_during_run(mission, other)
        reset_during_run(other, mission)
    finally:
        other.down()


def second_worktree(mission: Mission) -> Mission:
    """Return a `git worktree add` of the mission, with the ignored test/.env copied along, as editors and agents do."""
    if not (mission.root / ".git").exists():
        mission.git("init", "-q", "-b", "main")
        mission.git("add", "-A")
        mission.git("commit", "-q", "-m", "Begin")
    root = mission.folder / "another worktree"
    mission.git("worktree", "add", "-q", "--detach", str(root))
    other = Mission(root, mission.folder, mission.state)
    other.write("test/.env", (mission.root / "test/.env").read_bytes())
    return other


def reset_during_run(running: Mission, resetting: Mission) -> None:
    """Hold one worktree's suite at a package, reset the other's databases meanwhile, and see both as they should be."""
    document, env = running.folder / "run.json", running.watch()
    suite = [word for name in ("plans", "entitlements", "providers", "sign_in") for word in ("--package", PREFIX + name)]
    with running.gate("plans"), running.started("test", *suite, "--json", str(document), env=env) as process:
        running.await_package("plans")
        before, theirs = running.oids(), resetting.oids()
        resetting.harness("reset", "--no-wait").expect(0)
        after, replaced = running.oids(), resetting.oids()
        (running.observations / "plans.gate").unlink()
        running.finished(process)
    assert after == before
    assert replaced.pop("hangar") == theirs.pop("hangar")
    assert set(replaced) == {"hangar_test", "hangar_e2e"}
    assert not set(replaced.values()) & set(theirs.values())
    assert set(outcomes(json.loads(document.read_text())).values()) == {"passed"}


def test_concurrency_of_migrations(mission: Mission) -> None:
    """Sixteen processes migrate one empty database at once: all succeed, and every file is applied once."""
    mission.ask("DROP DATABASE IF EXISTS empty")
    mission.ask("CREATE DATABASE empty OWNER hangar_test TEMPLATE template0")
    applied = migrate_at_once(mission, f"{mission.variables()[TEST].rpartition('/')[0]}/empty")
    failed = [said for said in applied if isinstance(said, str)]
    assert failed == []
    counted = collections.Counter(file for files in applied for file in files)
    assert counted == {f"{path.parent.name}/{path.name}": 1 for path in FILES}
    assert mission.ask("SELECT count(*) FROM pgharness.applied", TEST, dbname="empty") == [(len(FILES),)]
    mission.ask("DROP DATABASE empty")


def test_concurrency_of_migrations_after_a_reset(mission: Mission) -> None:
    """After a reset sixteen migrators at once are no-ops, as one is."""
    mission.harness("reset", "--database", "test").expect(0)
    assert migrate_at_once(mission, mission.variables()[TEST]) == [[]] * 16


def migrate_at_once(mission: Mission, url: str) -> list[list[str] | str]:
    """Run the sixteen processes in the mission's folder and return what each says."""
    program = Path(__file__).with_name("migrators.py")
    argv = [sys.executable, str(program), url, "16"]
    done = subprocess.run(argv, cwd=mission.root, env=mission.environment(), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    answers: list[list[str] | str] = json.loads(done.stdout)
    assert len(answers) == 16
    return answers
