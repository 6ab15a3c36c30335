"""What a repository has that harness.toml speaks of: packages, databases, variables; each finding with a note."""

from __future__ import annotations

import configparser
import fnmatch
import re
from pathlib import PurePosixPath
from typing import NamedTuple
from urllib.parse import urlsplit

from harness import migrators
from harness.settings import DEFAULT_DATABASES, Database, Package, Stream
from harness.terrain import Terrain

_ENV_FILES = (".env", ".env.local", ".env.development", ".env.test", ".env.example", ".env.sample", ".env.template", ".env.dist")
_COMPOSE = tuple(f"{name}.{ending}" for name in ("compose", "docker-compose") for ending in ("yaml", "yml"))
_E2E = ("e2e", "end_to_end", "end-to-end", "endtoend", "acceptance")
_DSN = re.compile(r"""^\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*["']?((?:postgres(?:ql)?|postgis)(\+\w+)?://[^\s"']+)""", re.MULTILINE)
_PART = re.compile(
    r"(?:TEST_)?(?:PG|POSTGRES|POSTGRESQL|DB|DATABASE|SQL|DJANGO_DB)_?(HOST|PORT|USER|USERNAME|PASSWORD|PASS|NAME|DB|DATABASE|DBNAME)"
    r"(?:_(?:POSTGRES|POSTGRESQL|PG|PSQL|TEST))?"
)
_PLACES = {"USERNAME": "user", "PASS": "password", "DB": "name", "DATABASE": "name", "DBNAME": "name"}
_OTHERS = ("REDIS", "MONGO", "MYSQL", "MARIADB", "SQLITE", "MSSQL", "ORACLE", "RABBIT", "CELERY", "ELASTIC")
_ENGINES = ("postgres", "postgresql", "psql", "pgsql", "pg")


class Found(NamedTuple):
    """What harness.toml is to say, and in notes from where each thing is known; `image` is a compose file's server."""

    databases: tuple[Database, ...]
    streams: tuple[Stream, ...]
    packages: tuple[Package, ...]
    environment: tuple[tuple[str, str], ...]
    createdb: bool
    image: str
    notes: tuple[str, ...]


def survey(terrain: Terrain) -> Found:
    """Return what `terrain` has; nothing of it is run, and no value of a variable is kept."""
    packages, notes = _packages(terrain)
    streams, remarks = migrators.streams(terrain)
    notes += remarks
    image, compose_name, said = _compose(terrain)
    notes += said
    databases, scheme, said = _databases(terrain, packages, compose_name)
    notes += said
    code = _support(terrain, packages)
    environment, said = _environment(terrain, databases, scheme, code)
    notes += said
    makes = _makes_databases(terrain, code, packages)
    notes += [makes] if makes else []
    return Found(databases, streams, packages, environment, bool(makes), image, tuple(notes))


def _packages(terrain: Terrain) -> tuple[tuple[Package, ...], list[str]]:
    found = _pytest_packages(terrain)
    if found:
        return found, [f"pytest finds tests in {', '.join(package.path for package in found)}", *_mixed(terrain, found)]
    others = _other_packages(terrain)
    if others:
        return others, [f"{' '.join(package.command)} runs the tests in {package.path!r}" for package in others]
    return (), ["no tests were found: add their folders to [packages]"]


def _pytest_packages(terrain: Terrain) -> tuple[Package, ...]:
    patterns = _option(terrain, "python_files") or ["test_*.py", "*_test.py"]
    tests = [PurePosixPath(path) for path in terrain.files if _is_test(PurePosixPath(path), patterns)]
    wanted = [PurePosixPath(path) for path in _option(terrain, "testpaths") if terrain.has(path)]
    tops = wanted or list(dict.fromkeys(_top(path) for path in tests))
    tops = [top for top in tops if not any(other in top.parents for other in tops)]
    folders = [folder for top in tops for folder in _split(top, tests)]
    found = [Package(folder.as_posix(), _role(folder), folder.as_posix()) for folder in dict.fromkeys(folders)]
    return tuple(sorted(found, key=lambda package: package.role == "e2e"))


def _is_test(path: PurePosixPath, patterns: list[str]) -> bool:
    return path.suffix == ".py" and any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns)


def _top(path: PurePosixPath) -> PurePosixPath:
    """Return the outermost folder of tests that `path` lies in, else its own."""
    for folder in reversed(path.parents):
        if folder.name in ("tests", "test", "testing", *_E2E):
            return folder
    return path.parent


def _split(folder: PurePosixPath, tests: list[PurePosixPath]) -> list[PurePosixPath]:
    """Return `folder` where tests lie directly in it, else its folders that have any: one process each."""
    inside = [path for path in tests if folder in path.parents]
    if not inside or any(path.parent == folder for path in inside):
        return [folder] if inside else []
    depth = len(folder.parts)
    return list(dict.fromkeys(PurePosixPath(*path.parts[: depth + 1]) for path in inside))


def _role(folder: PurePosixPath) -> str:
    return "e2e" if any(part.lower() in _E2E for part in folder.parts) else "test"


def _mixed(terrain: Terrain, packages: tuple[Package, ...]) -> list[str]:
    """Name e2e folders inside a package of the other class: they would share its database."""
    inside = {
        parent.as_posix()
        for path in terrain.files
        for parent in PurePosixPath(path).parents
        if parent.name.lower() in _E2E and any(PurePosixPath(package.path) in parent.parents for package in packages)
    }
    return [f"{path} lies within a test package: move it beside it to give it the e2e database" for path in sorted(inside)]


def _option(terrain: Terrain, name: str) -> list[str]:
    """Return one of pytest's list options, from the file that pytest would read."""
    for path, section in (("pytest.ini", "pytest"), ("tox.ini", "pytest"), ("setup.cfg", "tool:pytest")):
        reader = configparser.RawConfigParser(strict=False)
        try:
            reader.read_string(terrain.text(path))
        except configparser.Error:
            continue
        if reader.has_section(section):
            return reader.get(section, name, fallback="").split()
    value = terrain.at("tool", "pytest", "ini_options", name) or terrain.at("tool", "pytest", name) or []
    return value.split() if isinstance(value, str) else [str(item) for item in value]


def _other_packages(terrain: Terrain) -> tuple[Package, ...]:
    rows: list[tuple[bool, str, tuple[str, ...]]] = [
        ("django" in terrain.text("manage.py"), "django", ("python", "manage.py", "test", "--noinput")),
        (terrain.has("go.mod"), "go", ("go", "test", "./...")),
        (re.search(r'"test"\s*:', terrain.text("package.json")) is not None, "npm", ("npm", "test")),
        (terrain.has("Cargo.toml"), "cargo", ("cargo", "test")),
    ]
    return tuple(Package(name, "test", ".", command=command) for is_there, name, command in rows if is_there)


def _compose(terrain: Terrain) -> tuple[str, str, list[str]]:
    """Return the image of the compose file's PostgreSQL, and the database that it makes."""
    for path in _COMPOSE:
        text = terrain.text(path)
        image = re.search(r"image:\s*[\"']?([\w./-]*(?:postgres|postgis|pgvector|timescaledb)[^\s\"'#]*)", text)
        if image:
            name = re.search(r"POSTGRES_DB['\"]?\s*[:=]\s*[\"']?([A-Za-z_][\w-]*)", text)
            return image[1], name[1] if name else "", [f"{path} runs {image[1]}: this worktree's own cluster takes its place in tests"]
    return "", "", []


def _databases(terrain: Terrain, packages: tuple[Package, ...], compose_name: str) -> tuple[tuple[Database, ...], str, list[str]]:
    """Return the databases by the names and variables in use, and the URL scheme that the application's variable has."""
    notes: list[str] = []
    scheme = ""
    given: dict[str, Database] = {}
    for path in _ENV_FILES:
        for variable, url, driver in _DSN.findall(terrain.text(path)):
            role = _role_of(variable)
            if role not in given and variable not in [database.variable for database in given.values()]:
                given[role] = Database(role, _name_in(url), variable)
                scheme = scheme or (f"postgresql{driver}" if role == "application" and driver else "")
                notes.append(f"{path} has {variable}: {'the application' if role == 'application' else f'the {role} database'}'s DSN")
    application = given.get("application")
    name = (application.name if application else "") or compose_name or terrain.name
    names = {"application": name, "test": f"{name}_test", "e2e": f"{name}_e2e", "maintenance": "postgres"}
    found = []
    for default in DEFAULT_DATABASES:
        known = given.get(default.role)
        if default.role == "e2e" and not (known or any(package.role == "e2e" for package in packages)):
            continue
        found.append(
            Database(default.role, (known.name if known else "") or names[default.role], known.variable if known else default.variable)
        )
    return _distinct(tuple(found), names), scheme, notes


def _role_of(variable: str) -> str:
    words = variable.upper().split("_")
    if "E2E" in words:
        return "e2e"
    if "MAINTENANCE" in words or "ADMIN" in words:
        return "maintenance"
    return "test" if any(word.startswith("TEST") for word in words) else "application"


def _name_in(url: str) -> str:
    try:
        name = urlsplit(url).path.strip("/")
    except ValueError:
        return ""
    return name if re.fullmatch(r"[A-Za-z_][\w-]{0,50}", name) and not name.startswith("pg_") else ""


def _distinct(databases: tuple[Database, ...], names: dict[str, str]) -> tuple[Database, ...]:
    """Give each database a name of its own: example files often name one twice."""
    seen: set[str] = set()
    found = []
    for database in databases:
        name = names[database.role] if database.name in seen else database.name
        seen.add(name)
        found.append(database._replace(name=name))
    return tuple(found)


def _support(terrain: Terrain, packages: tuple[Package, ...]) -> dict[str, str]:
    """Return the code that decides which database tests use: conftests, settings, and what lies beside the tests."""
    tops = [PurePosixPath(package.path) for package in packages if not package.command]
    found = {}
    for path in terrain.files:
        at = PurePosixPath(path)
        is_test = re.fullmatch(r"test_.*|.*_test", at.stem) is not None or at.suffix != ".py"
        if not is_test and (
            any(top in at.parents for top in tops) or at.name == "conftest.py" or "settings" in (*at.parts, *at.stem.split("_"))
        ):
            found[path] = terrain.text(path)
    return found


def _environment(
    terrain: Terrain, databases: tuple[Database, ...], scheme: str, code: dict[str, str]
) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    """Return the variables by which tests and the code under test find their database."""
    own = {database.variable for database in databases if database.role != "application"}
    found: dict[str, str] = {}
    notes = []
    for path, text in code.items():
        read = [name for name in migrators.names_read(text) if name not in own and not any(other in name.upper() for other in _OTHERS)]
        urls = {name: _url(scheme or migrators.scheme(terrain, text)) for name in read if _is_dsn(name)}
        parts = {name: "{" + _PLACES.get(match[1], match[1].lower()) + "}" for name in read if (match := _PART.fullmatch(name))}
        fresh = {
            name: value for name, value in {**(urls or parts), **_engines(text), **_django(terrain, text)}.items() if name not in found
        }
        if fresh:
            notes.append(f"{path} reads {', '.join(fresh)}")
        found |= fresh
    application = next(database.variable for database in databases if database.role == "application")
    is_named = any(database.variable == application for database in DEFAULT_DATABASES)
    if not is_named and application not in found and not any(name in text for name in own for text in code.values()):
        found[application] = _url(scheme or migrators.scheme(terrain))
        notes.append(f"tests see {application} too, with their own database's DSN: the code under test reads it")
    return tuple(found.items()), notes


def _url(scheme: str) -> str:
    return "{url}" if scheme == "postgresql" else f"{{url:{scheme}}}"


def _is_dsn(name: str) -> bool:
    words = name.upper().split("_")
    of_database = any(re.match(r"DATABASE|DB|PG|POSTGRES|SQL", word) for word in words)
    return of_database and any(word in ("URL", "DSN", "URI", "PGDSN", "CONNINFO") for word in words)


def _engines(text: str) -> dict[str, str]:
    """Return the variables whose default is SQLite, with the word that means PostgreSQL in the same code, where there is one."""
    words = [word for word in _ENGINES if re.search(rf"""["']{word}["']""", text)]
    names = re.findall(r"""(?:environ\.get|getenv)\(\s*["']([A-Z_][A-Z0-9_]*)["']\s*,\s*["']sqlite3?["']""", text)
    return dict.fromkeys(names, words[0]) if len(words) == 1 else {}


def _django(terrain: Terrain, text: str) -> dict[str, str]:
    """Return Django's settings module where a conftest sets it itself: too late for code that it imports."""
    if _option(terrain, "DJANGO_SETTINGS_MODULE") or "--ds" in "".join(_option(terrain, "addopts")):
        return {}
    module = re.search(r"""["']DJANGO_SETTINGS_MODULE["']\s*(?:\]\s*=|,)\s*["']([\w.]+)["']""", text)
    return {"DJANGO_SETTINGS_MODULE": module[1]} if module else {}


def _makes_databases(terrain: Terrain, code: dict[str, str], packages: tuple[Package, ...]) -> str:
    """Return why test roles must be allowed to create databases; empty when nothing speaks for it."""
    if (
        terrain.needs("pytest-django")
        or any("manage.py" in package.command for package in packages)
        or "DJANGO_SETTINGS_MODULE" in "".join(code.values())
    ):
        return "Django makes a test database of its own: [stack] createdb = true"
    for path, text in code.items():
        makes = [
            text[max(0, match.start() - 150) : match.start()] for match in re.finditer(r"CREATE\s+DATABASE\b|\bcreate_database\(", text)
        ]
        if any("mysql" not in before.lower() for before in makes):
            return f"{path} creates databases: [stack] createdb = true"
    return ""
