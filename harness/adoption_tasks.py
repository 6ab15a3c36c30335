"""The task that a repository begins with."""

from __future__ import annotations

from invoke.context import Context
from invoke.tasks import task

from harness.errors import boundary
from harness.frontend import JSON_HELP, say


@task(
    auto_shortflags=False,
    help={
        "source": "Where the bootstrap installs pgharness from: a wheel, a folder, a URL or a requirement (this installation's).",
        "dry-run": "Show what would be written, whole, and write nothing.",
        "json": JSON_HELP,
    },
)
def init(_context: Context, source: str = "", dry_run: bool = False, json: str = "") -> None:
    """Look at what a repository has, and write what it needs to be tested; nothing is overwritten."""
    with boundary("init", json_to=json) as outcome:
        from pathlib import Path

        from harness import onboarding, requirements, terrain, worktree
        from harness.results import encode
        from harness.settings import BOOTSTRAP
        from harness.survey import survey

        ground = terrain.Terrain(terrain.top(Path.cwd().resolve()))
        worktree.prove_own_tasks(ground.root)
        found = survey(ground)
        planned = onboarding.files(ground, found, requirements.source_line(ground.root, source))
        for note in found.notes:
            say(f"seen: {note}")
        for file in planned:
            say(file.line(is_done=not dry_run))
            if dry_run and file.preview:
                say(file.preview)
        if not dry_run:
            onboarding.write(ground.root, planned)
        following = "harness init" if dry_run else BOOTSTRAP
        outcome.document = {"root": str(ground.root), "found": encode(found), "files": encode(planned), "next": following}
        say(f"{'nothing was written' if dry_run else f'look at harness.toml in {str(ground.root)!r}'}; next: {following}")
