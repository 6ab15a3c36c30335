"""The net under the tests: what it refuses and what it lets through."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Net, TestWouldTouchARealDatabase

OUTER = "postgresql://dev:secret@127.0.0.1:16999/shop_test"

PACKAGE = """
import os, psycopg, pytest, subprocess, sys
from tests.conftest import TestWouldTouchARealDatabase

def test_variables_are_gone():
    assert "TEST_DATABASE_URL" not in os.environ

@pytest.mark.parametrize("dsn", [
    "postgresql://dev:secret@127.0.0.1:16999/shop_test", "postgresql://[::1]:16999/x", "host=localhost port=16999 dbname=shop",
    "postgresql:///shop?host=/tmp&port=16999",
])
def test_connecting_raises(dsn):
    with pytest.raises(TestWouldTouchARealDatabase):
        psycopg.connect(dsn)
    with pytest.raises(TestWouldTouchARealDatabase):
        psycopg.Connection.connect(dsn)

def test_a_program_with_the_dsn_is_not_started():
    with pytest.raises(TestWouldTouchARealDatabase):
        subprocess.run([sys.executable, "-c", "1"], env={"X": "postgresql://dev@localhost:16999/shop_test"})
    with pytest.raises(TestWouldTouchARealDatabase):
        subprocess.run(["psql", "postgresql://dev@localhost:16999/shop_test"])

def test_another_port_passes():
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect("postgresql://dev@127.0.0.1:1/shop", connect_timeout=2)
"""


def test_the_net_holds_in_a_package_of_its_own(tmp_path: Path) -> None:
    """With the outer DSN in its environment, a package under this conftest cannot reach that server by any spelling."""
    here = Path(__file__).resolve().parent.parent
    package = tmp_path / "inner"
    package.mkdir()
    (package / "conftest.py").write_text(
        "from tests.conftest import *\nfrom tests.conftest import pytest_addoption, pytest_collection_modifyitems\n"
    )
    (package / "test_inner.py").write_text(PACKAGE)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(here.parent), "TEST_DATABASE_URL": OUTER, "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", str(package)]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 passed" in done.stdout


def test_nothing_in_the_environment_means_nothing_refused() -> None:
    """Without an outer DSN there is nothing to protect."""
    net = Net({"PATH": "/bin", "NOT_A_URL": "postgres"})
    assert (net.variables, net.ports) == (set(), set())
    net.check_connection("postgresql://dev@127.0.0.1:5432/shop", {})


def test_a_missing_port_is_the_default_port() -> None:
    """An outer server on 5432 is protected from a connection string that leaves the port out."""
    net = Net({"TEST_DATABASE_URL": "postgresql://dev@db:5432/shop_test"})
    with pytest.raises(TestWouldTouchARealDatabase):
        net.check_connection("dbname=shop", {})
