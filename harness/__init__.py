"""A test-database harness for PostgreSQL."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os

    from harness.streams import Streams


def migrate(dsn: str, *, streams: Streams | None = None, root: str | os.PathLike[str] | None = None) -> list[str]:
    """Bring the database that `dsn` names up to date and return what was applied, as `stream/file`; it never drops.

    The streams are those of harness.toml in `root`, else in `$HARNESS_ROOT`, else the nearest one within the worktree; or
    `streams`, which maps names to folders (relative to `root`, else to the working folder), and then no harness.toml is
    read. An application's own start-up may call it; several may do so at once. Raises `harness.errors.HarnessError`: when
    a file fails, and when an applied file was edited, is gone, or would now come after a new one.
    """
    from harness.streams import migrate as run

    return run(dsn, streams=streams, root=root)
