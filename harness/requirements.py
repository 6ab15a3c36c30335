"""What the bootstrap installs for an adopting project, told from its own files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness import settings
from harness.errors import UsageError
from harness.settings import BOOTSTRAP
from harness.survey import Found
from harness.terrain import Terrain

_GROUPS = ("test", "tests", "testing", "dev")
_LISTS = ("requirements-test", "requirements-dev", "test-requirements", "dev-requirements", "requirements/test", "requirements/dev")


def text(terrain: Terrain, found: Found, source: str) -> str:
    """Return what the bootstrap installs: the harness from `source`, the project itself, and what its tests ask for."""
    lines = [source]
    extras: list[str] = []
    for group in _GROUPS:
        if terrain.at("dependency-groups", group) is not None:
            lines += _group(terrain, group, extras)
            break
    lines += _of_poetry(terrain)
    optional = terrain.at("project", "optional-dependencies") or {}
    extras += next(([name] for name in _GROUPS if name in optional), [])
    lists = [f"{name}.{ending}" for name in _LISTS for ending in ("txt", "in") if terrain.has(f"{name}.{ending}")][:1]
    lines += [f"-r ../{name}" for name in (["requirements.txt"] if terrain.has("requirements.txt") else []) + lists]
    poetry = terrain.at("tool", "poetry")
    if terrain.at("project") or (poetry and poetry.get("package-mode", True)) or terrain.has("setup.py"):
        lines.append(f"-e .[{','.join(dict.fromkeys(extras))}]" if extras else "-e .")
    if any(not package.command for package in found.packages) and not any(re.match(r"pytest\b(?!-)", line) for line in lines):
        lines.append("pytest")
    head = f"# What {BOOTSTRAP} installs into .venv where it is missing: a requirements file of pip's, paths from the top folder.\n"
    return head + "".join(f"{line}\n" for line in dict.fromkeys(lines))


def _group(terrain: Terrain, name: str, extras: list[str], seen: tuple[str, ...] = ()) -> list[str]:
    """Return a dependency group's lines, groups in it included; the project's own extras go to `extras`."""
    lines: list[str] = []
    for item in terrain.at("dependency-groups", name) or []:
        if isinstance(item, dict):
            inner = str(item.get("include-group", ""))
            lines += _group(terrain, inner, extras, (*seen, name)) if inner not in (*seen, name) else []
            continue
        own = re.fullmatch(r"\s*([\w.-]+)\s*\[([^\]]*)\]\s*", str(item))
        if own and _plain(own[1]) == _plain(str(terrain.at("project", "name"))):
            extras += [extra.strip() for extra in own[2].split(",")]
        else:
            lines.append(str(item))
    return lines


def _of_poetry(terrain: Terrain) -> list[str]:
    """Return what Poetry installs beside the project for its tests, in the versions that poetry.lock has."""
    poetry = terrain.at("tool", "poetry") or {}
    wanted = dict(poetry.get("dependencies", {})) if poetry.get("package-mode") is False else {}
    wanted.pop("python", None)
    groups = {"dev": {"dependencies": poetry.get("dev-dependencies", {})}, **poetry.get("group", {})}
    wanted |= next((groups[name].get("dependencies", {}) for name in _GROUPS if name in groups), {})
    locked: dict[str, set[str]] = {}
    for package in settings.toml(terrain.root / "poetry.lock").get("package", []) if wanted and terrain.has("poetry.lock") else []:
        locked.setdefault(_plain(package["name"]), set()).add(package["version"])
    return [_poetry_line(name, how if isinstance(how, dict) else {}, locked.get(_plain(name), set())) for name, how in wanted.items()]


def _poetry_line(name: str, how: dict[str, Any], versions: set[str]) -> str:
    if "path" in how:
        return f"{'-e ' * bool(how.get('develop'))}./{how['path']}"
    full = f"{name}[{','.join(how['extras'])}]" if how.get("extras") else name
    if "git" in how:
        at = next((f"@{how[key]}" for key in ("rev", "tag", "branch") if key in how), "")
        return f"{full} @ git+{how['git']}{at}"
    if "url" in how:
        return f"{full} @ {how['url']}"
    # Several versions are for several Pythons or systems: pip chooses.
    return f"{full}=={versions.pop()}" if len(versions) == 1 else full


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def source_line(root: Path, source: str) -> str:
    """Return the requirement that `--source` names: a wheel, an archive, a folder, a URL, or a requirement of pip's.

    Without one it is where this installation came from, or this version. Raises UsageError for a path that is not there.
    """
    if not source:
        return _recorded_source()
    path = Path(source).expanduser()
    if path.exists():
        path = path.resolve()
        try:
            return f"./{path.relative_to(root).as_posix()}"
        except ValueError:
            return f"pgharness @ {path.as_uri()}"
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", source):
        return f"pgharness @ {source}"
    if not re.match(r"pgharness\s*(\[[\w, -]*\])?\s*([@=<>!~;].*)?$", source):
        raise UsageError(
            f"--source is {source!r}, which is no path here, no URL and no requirement of pgharness",
            next="Give a wheel, a folder, a URL such as git+https://…, or `pgharness==VERSION`.",
        )
    return source


def _recorded_source() -> str:
    """Return what pip noted of this installation (PEP 610): a URL where it came from one, else this version of the index."""
    from importlib.metadata import distribution

    of = distribution("pgharness")
    noted = json.loads(of.read_text("direct_url.json") or "{}")
    url = str(noted.get("url", ""))
    if not url:
        return f"pgharness=={of.version}"
    vcs = noted.get("vcs_info")
    return f"pgharness @ {vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else f"pgharness @ {quote(url, safe=':/%+@')}"
