"""Streams of SQL and commands, each test on a database of its own in this package's cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import ScratchCluster
from tests.migrations.project import Project


@pytest.fixture
def project(tmp_path: Path, scratch_cluster: ScratchCluster) -> Project:
    """Return an empty project with an empty database."""
    return Project(tmp_path, scratch_cluster)
