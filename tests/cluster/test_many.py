"""Twelve worktrees at once."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

from tests.builders import HARNESS_ROOT
from tests.cluster.place import SCRIPT, Place

WORKTREES = 12


def environment_with_wheel(folder: Path) -> Path:
    """Make an environment outside all worktrees that holds the built wheel, and borrows its libraries from this one."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")]
    subprocess.run(build, cwd=HARNESS_ROOT, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    (site,) = (folder / "env/lib").glob("python*/site-packages")
    (wheel,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "env"


def test_twelve_worktrees_at_once(make_place: Callable[..., Place], ground: Path) -> None:
    """Twelve bootstraps at the same moment get twelve ports and twelve identities; then all reset at once."""
    env = environment_with_wheel(ground)
    places = [make_place(f"worktree {number}") for number in range(WORKTREES)]

    def together(*arguments: str) -> list[str]:
        started = [
            subprocess.Popen(
                [str(place.root / SCRIPT), "--python", str(env), *arguments],
                env=place.environment({"PYTHONPATH": None}),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for place in places
        ]
        outputs = [process.communicate(timeout=300)[0] for process in started]
        assert [process.returncode for process in started] == [0] * WORKTREES, outputs
        return outputs

    together("--no-reset")
    assert len({place.record["port"] for place in places}) == WORKTREES
    assert len({place.record["system_identifier"] for place in places}) == WORKTREES
    outputs = together()
    assert all("shop_test" in output for output in outputs)
    for place in places:
        assert place.value("SELECT system_identifier::text FROM pg_control_system()") == place.record["system_identifier"]
