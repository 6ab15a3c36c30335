"""Other tools' ways to two pristine databases, each as whole commands: the same SQL, and kind to each of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.sets import MigrationSet
from tests.builders import ScratchCluster

PYTHON_PEERS = ("django", "alembic", "psycopg[binary]", "pytest", "pytest-postgresql")


class Peer(NamedTuple):
    """One contestant: commands that are run one after another and timed together, and where."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    folder: Path


class Tools(NamedTuple):
    """Where the peers' programs are; a missing one is None, and its rows are left out."""

    python: Path | None
    dbmate: Path | None


def install(folder: Path) -> Tools:
    """Install the peers by their names into a folder, or find them there."""
    venv = folder / "venv"
    if not (venv / "bin" / "pytest").exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        subprocess.run([str(venv / "bin" / "pip"), "install", "-q", *PYTHON_PEERS], check=True)
    npm = shutil.which("npm")
    if npm and not (folder / "node_modules").exists():
        subprocess.run([npm, "install", "--silent", "--prefix", str(folder), "dbmate"], check=False)
    # The program itself, without the node process that npm puts before it.
    found = sorted(folder.glob("node_modules/@dbmate/*/bin/dbmate"))
    return Tools(venv / "bin" / "python", found[0] if found else None)


def prepare(tools: Tools, cluster: ScratchCluster, of: MigrationSet, folder: Path) -> list[Peer]:
    """Write every peer's project for a migration set, and return the peers."""
    makers: list[Callable[[Tools, ScratchCluster, MigrationSet, Path], Peer | None]] = [
        _psql_each,
        _psql_once,
        _dbmate,
        _alembic,
        _django,
        _pytest_postgresql,
    ]
    peers = []
    for maker in makers:
        place = folder / maker.__name__.strip("_")
        place.mkdir(parents=True)
        peer = maker(tools, cluster, of, place)
        if peer is not None:
            peers.append(peer)
    return peers


def _files(of: MigrationSet, folder: Path, form: str = "{}") -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = []
    for name, sql in of.sql().items():
        path = folder / name
        path.write_text(form.format(sql))
        paths.append(path)
    return paths


def _renewal(cluster: ScratchCluster, name: str) -> tuple[str, ...]:
    statements = (f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)', f"CREATE DATABASE \"{name}\" TEMPLATE template0 ENCODING 'UTF8'")
    return (*_psql(cluster, "postgres"), "-c", statements[0], "-c", statements[1])


def _psql(cluster: ScratchCluster, name: str) -> tuple[str, ...]:
    # The binary itself: a distribution's wrapper costs 20 ms more.
    return (str(cluster.binaries / "psql"), "-Xqo", "/dev/null", "-v", "ON_ERROR_STOP=1", "-d", cluster.dsn("su", name))


def _psql_each(_tools: Tools, cluster: ScratchCluster, of: MigrationSet, folder: Path) -> Peer:
    files, commands = _files(of, folder / "sql"), []
    for name in ("each_test", "each_e2e"):
        commands.append(_renewal(cluster, name))
        commands += [(*_psql(cluster, name), "-1", "-f", str(file)) for file in files]
    return Peer("psql, one per file", tuple(commands), folder)


def _psql_once(_tools: Tools, cluster: ScratchCluster, of: MigrationSet, folder: Path) -> Peer:
    arguments = [part for file in _files(of, folder / "sql") for part in ("-f", str(file))]
    commands = []
    for name in ("once_test", "once_e2e"):
        commands += [_renewal(cluster, name), (*_psql(cluster, name), *arguments)]
    return Peer("psql, one for all files", tuple(commands), folder)


def _dbmate(tools: Tools, cluster: ScratchCluster, of: MigrationSet, folder: Path) -> Peer | None:
    if tools.dbmate is None:
        return None
    _files(of, folder / "migrations", "-- migrate:up\n{}\n-- migrate:down\n")
    commands = []
    for name in ("mate_test", "mate_e2e"):
        common = (str(tools.dbmate), "--no-dump-schema", "-d", "migrations", "--url", cluster.dsn("su", name, sslmode="disable"))
        commands += [(*common, "drop"), (*common, "up")]
    return Peer("dbmate", tuple(commands), folder)


ALEMBIC_ENV = """\
import os
import sqlalchemy
from alembic import context
engine = sqlalchemy.create_engine(os.environ["DATABASE_URL"], poolclass=sqlalchemy.pool.NullPool)
with engine.connect() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
"""
REVISION = '''\
revision, down_revision = {revision!r}, {down!r}
def upgrade():
    from alembic import op
    op.get_bind().exec_driver_sql("""{sql}""".replace("%", "%%"))
'''


def _alembic(tools: Tools, cluster: ScratchCluster, of: MigrationSet, folder: Path) -> Peer | None:
    if tools.python is None:
        return None
    versions = folder / "migrations" / "versions"
    versions.mkdir(parents=True)
    (folder / "alembic.ini").write_text("[alembic]\nscript_location = migrations\n")
    (folder / "migrations" / "env.py").write_text(ALEMBIC_ENV)
    down = None
    for name, sql in of.sql().items():
        revision = f"r{name[:4]}"
        (versions / f"{revision}.py").write_text(REVISION.format(revision=revision, down=down, sql=sql))
        down = revision
    commands: list[tuple[str, ...]] = []
    for name in ("lemb_test", "lemb_e2e"):
        url = cluster.dsn("su", name).replace("postgresql:", "postgresql+psycopg:")
        commands += [
            _renewal(cluster, name),
            ("/usr/bin/env", f"DATABASE_URL={url}", str(tools.python), "-m", "alembic", "upgrade", "head"),
        ]
    return Peer("alembic", tuple(commands), folder)


DJANGO = """\
import django
from django.conf import settings
databases = {{
    alias: {{"ENGINE": "django.db.backends.postgresql", "NAME": name, "USER": "su", "PASSWORD": {password!r}, "HOST": "127.0.0.1", "PORT": {port},
            "TEST": {{"NAME": name, "TEMPLATE": "template0"}}}}
    for alias, name in (("default", "django_test"), ("e2e", "django_e2e"))
}}
settings.configure(DATABASES=databases, INSTALLED_APPS=["app"], USE_TZ=True, DEFAULT_AUTO_FIELD="django.db.models.BigAutoField")
django.setup()
from django.db import connections
for alias in databases:
    connections[alias].creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
"""
DJANGO_MIGRATION = '''\
from django.db import migrations
class Migration(migrations.Migration):
    dependencies = {dependencies}
    operations = [migrations.RunSQL("""{sql}""")]
'''


def _django(tools: Tools, cluster: ScratchCluster, of: MigrationSet, folder: Path) -> Peer | None:
    if tools.python is None:
        return None
    app = folder / "app" / "migrations"
    app.mkdir(parents=True)
    for package in (app.parent, app):
        (package / "__init__.py").touch()
    before = ""
    for name, sql in of.sql().items():
        module = f"m{name[:4]}"
        dependencies = [("app", before)] if before else []
        (app / f"{module}.py").write_text(DJANGO_MIGRATION.format(dependencies=dependencies, sql=sql))
        before = module
    (folder / "make.py").write_text(DJANGO.format(password=cluster.passwords["su"], port=cluster.port))
    return Peer("Django's test databases", ((str(tools.python), "make.py"),), folder)


PYTEST = """\
from pathlib import Path
from pytest_postgresql import factories
files = sorted(Path(__file__).parent.joinpath("sql").glob("*.sql"))
common = dict(host="127.0.0.1", port={port}, user="su", password={password!r}, load=files)
test_server = factories.postgresql_noproc(dbname="pp_test", **common)
test_db = factories.postgresql("test_server")
e2e_server = factories.postgresql_noproc(dbname="pp_e2e", **common)
e2e_db = factories.postgresql("e2e_server")
def test_both(test_db, e2e_db):
    assert test_db.execute("SELECT 1").fetchone() == e2e_db.execute("SELECT 1").fetchone() == (1,)
"""


def _pytest_postgresql(tools: Tools, cluster: ScratchCluster, of: MigrationSet, folder: Path) -> Peer | None:
    if tools.python is None:
        return None
    _files(of, folder / "sql")
    (folder / "test_both.py").write_text(PYTEST.format(password=cluster.passwords["su"], port=cluster.port))
    (folder / "pytest.ini").write_text("[pytest]\n")
    return Peer("pytest-postgresql", ((str(tools.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_both.py"),), folder)
