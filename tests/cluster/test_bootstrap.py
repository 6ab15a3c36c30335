"""test/bootstrap-stack.sh: its options, whose Python it uses, and the bash that it may expect."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.builders import HARNESS_ROOT, ScratchCluster
from tests.cluster.place import SCRIPT, Place

TEXT = (HARNESS_ROOT / SCRIPT).read_text()
NOT_IN_BASH_3 = {
    "mapfile": r"\b(mapfile|readarray)\b",
    "declare -A": r"\b(declare|local|typeset) -\w*[An]",
    "case change": r"\$\{\w+(\^|,|@[A-Z])",
    "[[ -v ]]": r"\[\[? -v ",
    "wait -n": r"\bwait -n\b",
    "coproc": r"\bcoproc\b",
    "&>>": r"&>>|\|&",
    "negative index": r"\$\{\w+\[-|\$\{\w+: ?-\d",
    "array that may be empty": r'(?<![+])"\$\{\w+\[@\]\}"',
    "only Linux": r"(?<!\.)\b(flock|timeout|setsid|nproc)\b|readlink -f|\bss -|sed -i|stat -c|date -d|mktemp -p|xargs -r",
}


def run_script(
    place: Place, *arguments: str, env: Mapping[str, str | None] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the script without --python."""
    return subprocess.run(
        [str(place.root / SCRIPT), *arguments],
        cwd=cwd or place.root,
        env=place.environment(env),
        capture_output=True,
        text=True,
        check=False,
    )


def make_environment(folder: Path, place: Place) -> Path:
    """Make what the script takes for an installed environment: it tells, in used.txt, when its Python is started."""
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin/python"
    python.write_text(f'#!/bin/sh\necho used >>"{folder}/used.txt"\nPYTHONPATH="{HARNESS_ROOT}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (folder / "pgharness.installed").write_text(f"{place.root}\n")
    return folder


def was_used(environment: Path) -> bool:
    """Say whether its Python was started, and forget it."""
    mark = environment / "used.txt"
    used = mark.exists()
    mark.unlink(missing_ok=True)
    return used


@pytest.mark.parametrize("construct", NOT_IN_BASH_3, ids=list(NOT_IN_BASH_3))
def test_no_construct_that_an_old_bash_or_macos_lacks(construct: str) -> None:
    """BOOT-07: bash 3.2 has none of these, macOS none of the tools."""
    lines = [line for line in TEXT.splitlines() if not line.lstrip().startswith("#")]
    guarded = [re.sub(r'\$\{(\w+)\[@\]\+"\$\{\1\[@\]\}"\}', "", line) for line in lines]
    assert [line for line in guarded if re.search(NOT_IN_BASH_3[construct], line)] == []


def test_the_lint_knows_its_enemies() -> None:
    """Each construct is found where it stands."""
    enemies = ["mapfile -t a", "declare -A x", "${x^^}", "[[ -v x ]]", "wait -n", "coproc x", "a &>>b", "${a[-1]}", '"${a[@]}"', "flock 9"]
    assert [name for name, enemy in zip(NOT_IN_BASH_3, enemies, strict=True) if not re.search(NOT_IN_BASH_3[name], enemy)] == []


def test_shellcheck_finds_nothing() -> None:
    """The script is clean."""
    program = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run([str(program), str(HARNESS_ROOT / SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_help_and_wrong_options(place: Place) -> None:
    """--help shows every option and does nothing; what is unknown is named and exits 2."""
    done = run_script(place, "--help")
    assert done.returncode == 0
    for option in ("--server auto|system|embedded|external", "--no-reset", "--python", "--force", "--help", "HARNESS_PASSWORD"):
        assert option in done.stdout
    for arguments, named in (
        (["--sever"], "--sever"),
        (["--server", "mysql"], "mysql"),
        (["--python"], "--python"),
        (["--python", "/nowhere"], "/nowhere"),
    ):
        done = run_script(place, *arguments)
        assert (done.returncode, named in done.stderr) == (2, True), done
    assert not place.stack.exists()


def test_from_a_subfolder_through_a_link_inside_a_hook(place: Place, ground: Path) -> None:
    """Without git, through a link, from anywhere, with git's hook variables and a poisoned PYTHONPATH: this worktree is set up."""
    (ground / "link").symlink_to(place.root)
    poison = ground / "poison"
    (poison / "harness").mkdir(parents=True)
    (poison / "harness/__init__.py").write_text("raise SystemExit('the wrong harness')\n")
    (place.root / "harness").mkdir()
    (place.root / "harness/__init__.py").write_text("raise SystemExit('a folder of that name')\n")
    done = subprocess.run(
        [str(ground / "link" / SCRIPT), "--python", sys.executable, "--no-reset"],
        cwd=place.root / "tests/orders",
        env=place.environment({"PYTHONPATH": str(poison), "GIT_DIR": "/nowhere", "GIT_INDEX_FILE": "/nowhere/index"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert place.record["worktree"] == str(place.root)
    assert place.value("SELECT count(*) FROM pg_database WHERE datname = 'shop_test'") == 0


def test_another_worktrees_activated_environment_is_not_used(place: Place, make_place: Callable[..., Place]) -> None:
    """The worktree's own .venv counts, unless VIRTUAL_ENV lies inside this worktree, and not inside one nested in it."""
    other = make_place("other")
    nested = place.root / "nested"
    nested.mkdir()
    (nested / ".git").write_text("gitdir: elsewhere\n")
    own = make_environment(place.root / ".venv", place)
    foreign = [make_environment(other.root / ".venv", other), make_environment(nested / ".venv", place)]
    for environment in foreign:
        done = run_script(place, "--no-reset", env={"VIRTUAL_ENV": str(environment), "PYTHONPATH": None})
        assert done.returncode == 0, done.stderr
        assert was_used(own)
        assert not was_used(environment)
    inside = make_environment(place.root / "tools/env", place)
    done = run_script(place, "--no-reset", env={"VIRTUAL_ENV": str(inside), "PYTHONPATH": None})
    assert done.returncode == 0, done.stderr
    assert (was_used(inside), was_used(own)) == (True, False)


def test_the_reset_follows_and_its_exit_code_is_the_scripts(place: Place) -> None:
    """After one command both databases stand migrated; a failing migration's code is the script's."""
    place.bootstrap().expect(0)
    assert place.value("SELECT count(*) FROM item", "TEST_DATABASE_URL") == 0
    assert place.value("SELECT count(*) FROM item", "E2E_DATABASE_URL") == 0
    place.migration("0002_broken.sql", "CREATE TABLE;\n")
    place.bootstrap().expect(4, "0002_broken.sql")
    place.settings("[databases]\nnonsense = 1\n")
    place.bootstrap().expect(2, "nonsense")


def test_an_external_server(place: Place) -> None:
    """The DSNs come from the environment; the maintenance DSN defaults to the test one's server; a missing one is named."""
    with ScratchCluster() as server:
        server.create_role("dev", "LOGIN CREATEDB")
        server.create_database("shop", "dev")
        env: dict[str, str | None] = {
            "MC_DB_DSN": f"{server.dsn('dev', 'shop')}?application_name=a&sslmode=disable",
            "TEST_DATABASE_URL": server.dsn("dev", "shop_test"),
            "E2E_DATABASE_URL": server.dsn("dev", "shop_e2e"),
        }
        place.bootstrap("--server", "external", env={**env, "E2E_DATABASE_URL": None}).expect(2, "E2E_DATABASE_URL")
        assert not (place.root / "test/.env").exists()
        place.bootstrap("--server", "external", env=env).expect(0, "shop_test")
        assert place.variables()["MAINTENANCE_DATABASE_URL"] == server.dsn("dev", "postgres")
        assert f"MC_DB_DSN='{env['MC_DB_DSN']}'\n" in (place.root / "test/.env").read_text()
        assert {"shop", "shop_e2e", "shop_test"} <= set(server.databases())
        other = {**env, "MAINTENANCE_DATABASE_URL": server.dsn("dev", "postgres").replace(str(server.port), "1")}
        place.bootstrap("--server", "external", "--no-reset", env=other).expect(0, "port 1", str(server.port))
    assert not place.data.exists()


def test_killed_installation_is_begun_again(place: Place) -> None:
    """An environment that was not finished is not trusted: the script begins it anew, one bootstrap at a time."""
    environment = make_environment(place.root / ".venv", place)
    (environment / "pgharness.unfinished").touch()
    tools = place.root.parent / "tools"
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "basename", "readlink", "cat", "grep", "cksum", "mkdir", "rm", "touch", "env"):
        (tools / name).symlink_to(str(shutil.which(name)))
    python = tools / "python3"
    python.write_text(f'#!/bin/sh\ncase "$*" in *venv*) echo "venv asked for: $*" >&2; exit 1;; esac\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    done = run_script(place, env={"PATH": str(tools), "PYTHONPATH": None})
    assert done.returncode == 5, done
    assert "no Python 3.10 or newer with the venv module" in done.stderr
    assert os.access(place.root / SCRIPT, os.X_OK)
