"""Errors are told apart by SQLSTATE and type: a server that speaks German gives the same exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests import scratch
from tests.builders import SampleRepository, ScratchCluster, Sentinel, untouched

DATABASES = ("shop", "shop_test", "shop_e2e")


@pytest.fixture(scope="module")
def german() -> Iterator[ScratchCluster]:
    """Run a server with German messages: by gettext's own variable, which no installed locale is needed for."""
    with pytest.MonkeyPatch.context() as patch:
        plain = scratch._server_environment
        patch.setattr(scratch, "_server_environment", lambda: {**plain(), "LANGUAGE": "de"})
        with ScratchCluster(lc_messages="C.UTF-8") as cluster:
            try:
                cluster.execute("SELECT 1/0")
            except psycopg.Error as error:
                if error.diag.message_primary != "Division durch Null":
                    pytest.skip(f"this server has no German messages (it says {error.diag.message_primary!r})")
            yield cluster


def test_the_same_codes_in_german(german: ScratchCluster, tmp_path: Path) -> None:
    """Refused, failed and unreachable end as they do in English."""
    repository = SampleRepository(tmp_path / "der Laden", german)
    repository.run("reset").expect(0)
    with Sentinel(german):
        with untouched(german, *DATABASES):
            repository.env_file({"TEST_DATABASE_URL": german.dsn("dev", "shop").replace("127.0.0.1", "localhost")})
            repository.run("reset").expect(3, "the same database 'shop'")
            repository.env_file({"MAINTENANCE_DATABASE_URL": german.dsn("dev").replace("dev-secret", "wrong")})
            repository.run("reset").expect(3, "MAINTENANCE_DATABASE_URL")
            repository.env_file()
            german.execute("ALTER ROLE dev NOCREATEDB")
            repository.run("reset").expect(3, "may not create databases")
            german.execute("ALTER ROLE dev CREATEDB")
            with german.connect("su", "shop_test"):
                repository.run("reset").expect(4, "Only a superuser can end it")
            repository.migration("0002_broken.sql", "SELECT 1/0;\n")
            repository.run("reset").expect(4, "0002_broken.sql", "22012", "Division durch Null")
        repository.migration("0002_broken.sql", "SELECT 1;\n")
        repository.run("test", "--e2e").expect(0)
