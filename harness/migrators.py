"""Which migration tool a project uses, as streams: told by the files that each tool keeps."""

from __future__ import annotations

import configparser
import re
from pathlib import Path, PurePosixPath

from harness import folders
from harness.errors import UsageError
from harness.settings import Stream
from harness.terrain import Terrain

_READS = r"""(?:environ(?:\.get)?|getenv|env(?:\.\w+)?|config)\s*[\(\[]\s*["']([A-Za-z_][A-Za-z0-9_]*)["']"""
_NUMBERED = re.compile(r"(\d+.*|V\d+.*__.*)\.sql", re.IGNORECASE)


def names_read(text: str) -> list[str]:
    """Return the environment variables that Python code reads by a plain name, in order."""
    return list(dict.fromkeys(re.findall(_READS, text)))


def scheme(terrain: Terrain, *texts: str) -> str:
    """Return the URL scheme that SQLAlchemy wants here: one written in `texts`, else the one of the driver asked for."""
    for text in texts:
        written = re.search(r"postgres(?:ql)?\+(psycopg2|psycopg|asyncpg|pg8000)\b", text)
        if written:
            return f"postgresql+{written[1]}"
    if not any(terrain.needs(name) for name in ("sqlalchemy", "sqlmodel", "alembic", "flask-sqlalchemy")):
        return "postgresql"
    drivers = {"asyncpg": "asyncpg", "psycopg2": "psycopg2", "psycopg2-binary": "psycopg2", "psycopg": "psycopg", "pg8000": "pg8000"}
    return next((f"postgresql+{driver}" for name, driver in drivers.items() if terrain.needs(name)), "postgresql")


def streams(terrain: Terrain) -> tuple[tuple[Stream, ...], tuple[str, ...]]:
    """Return the streams that the project's files speak of, SQL first, and a note per stream or doubt."""
    found: list[Stream] = []
    notes: list[str] = []
    for look in (_alembic, _django, _yoyo):
        some, said = look(terrain)
        found += some
        notes += said
    plain, said = _sql(terrain, taken=[pattern.split("/*")[0] for stream in found for pattern in stream.inputs or ()])
    found, notes = [*plain, *found], [*said, *notes]
    if not found:
        notes.append("no migrations were found: add a [[migrations]] table, or the test databases stay empty")
    return tuple(found), tuple(notes)


def _sql(terrain: Terrain, *, taken: list[str]) -> tuple[list[Stream], list[str]]:
    """Return the folders of numbered SQL, but for those of another tool; one that a stream would refuse is told and left out."""
    found: list[Stream] = []
    notes = []
    counted: dict[str, int] = {}
    for path in terrain.files:
        at = PurePosixPath(path)
        if _NUMBERED.fullmatch(at.name) and _is_of_migrations(at):
            counted[at.parent.as_posix()] = counted.get(at.parent.as_posix(), 0) + 1
    for folder, count in counted.items():
        if any(folder == other or folder.startswith(f"{other}/") for other in taken):
            continue
        name = _stream_name(folder, {stream.name for stream in found})
        try:
            folders.read(name, terrain.root / folder)
        except UsageError as error:
            notes.append(f"{folder} is no stream as it is: {error}")
            continue
        found.append(Stream(name, directory=folder))
        notes.append(f"{folder} has {count} numbered SQL file{'s' * (count != 1)}")
    return found, notes


def _is_of_migrations(path: PurePosixPath) -> bool:
    parts = path.parts[:-1]
    if any(part in ("test", "tests", "testdata", "fixtures", "examples", "docs") for part in parts):
        return False
    return any(re.search(r"migrat|schema|initdb|^(sql|db|database|ddl)$", part) for part in parts)


def _stream_name(folder: str, taken: set[str]) -> str:
    parts = [part for part in PurePosixPath(folder).parts if part not in ("migrations", "migration", "db", "sql", "migrate")]
    name = parts[-1] if parts else "core"
    return name if name not in taken else folder


def _alembic(terrain: Terrain) -> tuple[list[Stream], list[str]]:
    found = []
    notes = []
    for path in [path for path in terrain.files if PurePosixPath(path).name == "alembic.ini"]:
        where = PurePosixPath(path).parent
        reader = configparser.RawConfigParser(strict=False)
        try:
            reader.read_string(terrain.text(path))
            location = reader.get("alembic", "script_location", fallback="alembic")
        except configparser.Error:
            location = "alembic"
        scripts = (where / location.replace("%(here)s/", "").replace("%(here)s", ".")).as_posix()
        code = terrain.text(f"{scripts}/env.py")
        variable = _dsn_variable(code)
        found.append(
            Stream(
                "alembic" if where == PurePosixPath() else where.name,
                command=("alembic", "upgrade", "head") if where == PurePosixPath() else ("alembic", "-c", path, "upgrade", "head"),
                variable=variable or Stream("").variable,
                scheme=scheme(terrain, code, terrain.text(path)),
                inputs=(path, f"{scripts}/**/*.py"),
            )
        )
        notes.append(f"{path} speaks of alembic")
        if not variable:
            notes.append(
                f"{scripts}/env.py reads no DSN from the environment: have it take {Stream('').variable}, or say which one it takes"
            )
    return found, notes


def _dsn_variable(code: str) -> str:
    return next((name for name in names_read(code) if re.search(r"URL|DSN|URI|DATABASE", name.upper())), "")


def _django(terrain: Terrain) -> tuple[list[Stream], list[str]]:
    if "django" not in terrain.text("manage.py"):
        return [], []
    own = [pattern for pattern in ("manage.py", "requirements.txt", "uv.lock", "poetry.lock") if terrain.has(pattern)]
    apps = {PurePosixPath(path).parent for path in terrain.files if re.search(r"(^|/)migrations/\d+_\w+\.py$", path)}
    inputs = (*own, *sorted(f"{folder.as_posix()}/*.py" for folder in apps))
    return [Stream("django", command=("python", "manage.py", "migrate", "--noinput"), inputs=inputs)], ["manage.py speaks of Django"]


def _yoyo(terrain: Terrain) -> tuple[list[Stream], list[str]]:
    if not terrain.has("yoyo.ini"):
        return [], []
    sources = re.search(r"^sources\s*=\s*(?:%\(here\)s/)?(\S+)", terrain.text("yoyo.ini"), re.MULTILINE)
    folder = sources[1] if sources and (terrain.root / sources[1]).is_dir() else ""
    inputs = ("yoyo.ini", *([f"{Path(folder).as_posix()}/*"] if folder else []))
    stream = Stream("yoyo", command=("yoyo", "apply", "--batch"), scheme="postgresql+psycopg", inputs=inputs)
    return [stream], ["yoyo.ini speaks of yoyo; its `database` must be %(DATABASE_URL)s"]
