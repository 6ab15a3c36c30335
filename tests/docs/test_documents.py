"""The documents say what the code says: commands parse, settings load, tables are complete."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from invoke.collection import Collection
from invoke.parser import Parser
from invoke.parser.argument import Argument
from invoke.tasks import Task

from harness import errors, settings, tasks
from harness.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
README, REFERENCE = ROOT / "README.md", ROOT / "docs" / "reference.md"
COLLECTION = Collection(*(vars(tasks)[name] for name in tasks.__all__))
CONTEXTS = {context.name: context for context in COLLECTION.to_contexts()}
TASKS = sorted(name for name in CONTEXTS if name)


def blocks(path: Path, language: str) -> Iterator[str]:
    """Yield the fenced blocks of one language."""
    for found in re.finditer(rf"^```{language}\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        yield found[1]


def section(path: Path, heading: str) -> str:
    """Return what stands under a heading, up to the next one of its rank or a higher one."""
    text = path.read_text(encoding="utf-8")
    rank = heading.partition(" ")[0]
    found = re.search(rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{len(rank)}}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{path.name} has no {heading!r}"
    return found[1]


def table(text: str) -> list[list[str]]:
    """Return the cells of the first table, without its head."""
    rows = [line.strip().strip("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)] for row in rows[2:]]


def commands(path: Path) -> Iterator[str]:
    """Yield the lines of shell blocks, and the inline code that begins with one of our commands."""
    for block in blocks(path, "sh"):
        yield from (line for line in block.splitlines() if line.strip())
    for inline in re.findall(r"`([^`\n]+)`", path.read_text(encoding="utf-8")):
        if re.match(r"(\.venv/bin/)?(inv|harness) [a-z]", inline):
            yield inline


def ours(command: str) -> list[str] | None:
    """Return the arguments of a command of ours, None for any other; `eval "$(inv env)"` counts."""
    inner = re.search(r'"\$\((.*)\)"', command)
    words = shlex.split(inner[1] if inner else command)
    if not words or Path(words[0]).name not in ("inv", "harness"):
        return None
    return words[1:]


COMMANDS = [(path.name, arguments) for path in DOCUMENTS for command in dict.fromkeys(commands(path)) if (arguments := ours(command))]


@pytest.mark.parametrize(
    "arguments", [arguments for _, arguments in COMMANDS], ids=[f"{name}: {' '.join(found)}" for name, found in COMMANDS]
)
def test_every_command_parses(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a reader copies is a task with flags that it has."""
    monkeypatch.setattr(sys, "argv", ["inv", *arguments])  # a task of files counts them there
    ours_only = arguments[: arguments.index("--")] if "--" in arguments else arguments
    parsed = Parser(contexts=COLLECTION.to_contexts()).parse_argv(ours_only)
    assert [context.name for context in parsed if context.name] == [arguments[0]]


def test_the_documents_have_commands_at_all() -> None:
    """A change of the documents' form must not empty the test above."""
    assert len(COMMANDS) > 25
    assert {arguments[0] for _, arguments in COMMANDS} >= set(TASKS)


@pytest.mark.parametrize("path", DOCUMENTS, ids=[path.name for path in DOCUMENTS])
def test_every_toml_block_is_a_harness_toml(path: Path, tmp_path: Path) -> None:
    """What a reader pastes loads."""
    for number, block in enumerate(blocks(path, "toml")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "harness.toml").write_text(block, encoding="utf-8")
        settings.load(folder)


def flags(name: str) -> set[str]:
    """Return a task's flags as they are typed; one that is on by default is typed as --no-NAME."""
    return {f"--no-{argument.name}" if argument.default is True else f"--{flag}" for flag, argument in arguments_of(name).items()}


def arguments_of(name: str) -> dict[str, Argument]:
    """Return a task's arguments by the name that Invoke gives their flag."""
    context = CONTEXTS[name]
    return {flag.lstrip("-"): argument for flag, argument in context.flags.items()}


@pytest.mark.parametrize("name", TASKS)
def test_the_reference_has_every_flag(name: str) -> None:
    """A section per task, a row per flag, none missing and none too many."""
    rows = table(section(REFERENCE, f"### {name}"))
    assert {row[0].strip("`") for row in rows} == flags(name)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_and_flag_has_help(name: str) -> None:
    """`inv --help TASK` says in sentences what the task and each flag does; there is no short flag."""
    (task,) = [value for value in vars(tasks).values() if isinstance(value, Task) and value.__name__.replace("_", "-") == name]
    assert re.fullmatch(r"[A-Z].*\.", (task.__doc__ or "").strip(), re.DOTALL)
    for flag, argument in arguments_of(name).items():
        assert len(flag) > 1
        assert re.fullmatch(r"(--)?\w.*[.)]", argument.help or ""), f"--{flag}: {argument.help}"


def test_task_names_can_be_star_imported() -> None:
    """A dot in a name would kill every `inv` call of an adopting repository."""
    assert all(re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", name) for name in TASKS)
    assert {name.replace("-", "_") for name in TASKS} == set(tasks.__all__)


def test_the_reference_and_the_readme_have_every_task() -> None:
    """Both list the collection."""
    headings = re.findall(r"^### (\S+)$", section(REFERENCE, "## Tasks"), re.MULTILINE)
    assert sorted(headings) == TASKS
    listed = [name for row in table(section(README, "## The tasks")) for name in re.findall(r"`inv ([a-z-]+)[^`]*`", row[0])]
    assert sorted(listed) == TASKS


def known_keys(text: str, tmp_path: Path) -> set[str]:
    """Return the keys that harness.toml knows at a place, as its own message lists them."""
    (tmp_path / "harness.toml").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        settings.load(tmp_path)
    return set(caught.value.next.removeprefix("Known here: ").removesuffix(".").split(", "))


PLACES = {
    "### `[databases]`": "[databases]\nzzzzzzzzzz = 1",
    "### `[[migrations]]`": '[[migrations]]\nstream = "a"\ndirectory = "b"\nzzzzzzzzzz = 1',
    "### `[packages]`": '[packages]\ntest = [{ path = "a", zzzzzzzzzz = 1 }]',
    "### `[run]`": "[run]\nzzzzzzzzzz = 1",
    "### `[stack]`": "[stack]\nzzzzzzzzzz = 1",
}


@pytest.mark.parametrize(("heading", "text"), PLACES.items(), ids=PLACES)
def test_the_reference_has_every_key(heading: str, text: str, tmp_path: Path) -> None:
    """A row per key of each table."""
    assert {row[0].strip("`") for row in table(section(REFERENCE, heading))} == known_keys(text, tmp_path)


def test_the_reference_has_every_table(tmp_path: Path) -> None:
    """A heading per table of harness.toml."""
    headings = {heading.strip("`[]") for heading in re.findall(r"^### (.*)$", section(REFERENCE, "## harness.toml"), re.MULTILINE)}
    assert headings == known_keys("zzzzzzzzzz = 1", tmp_path)


def shown(value: object) -> str:
    """Return a default as the reference writes it."""
    if value is None or value in ("", ()):
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{list(value)}`" if isinstance(value, tuple) else f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def test_the_reference_has_the_defaults() -> None:
    """Each default is the one in the code."""
    stream = settings.Stream("")
    fields: list[dict[str, Any]] = [
        {**stream._asdict(), "url": stream.scheme, "as": ""},
        settings.Package("", "", "")._asdict(),
        settings.Run()._asdict(),
        settings.Stack()._asdict(),
    ]
    for heading, defaults in zip(list(PLACES)[1:], fields, strict=True):
        for key, default, _ in table(section(REFERENCE, heading)):
            if default not in ("required", "the path"):
                assert default == shown(defaults[key.strip("`")]), (heading, key)
    rows = [(row[0].strip("`"), row[1].strip("`"), row[2].strip("`")) for row in table(section(REFERENCE, "### `[databases]`"))]
    assert rows == [tuple(database) for database in settings.DEFAULT_DATABASES]


def test_keys_without_effect_are_told_and_no_others() -> None:
    """The interface is fixed ahead of the code: a key that is read and not used yet says so, until it is used."""
    told = set(re.findall(r"^\| `(\w+)` \|.*\(no effect yet\)", section(REFERENCE, "## harness.toml"), re.MULTILINE))
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "harness").glob("*.py") if path.name != "settings.py")
    keys = {f"run.{name}": name for name in settings.Run._fields} | {f"package.{name}": name for name in settings.Package._fields}
    keys |= {f".{name}": name for name in (*settings.Stack._fields, *settings.Stream._fields)}
    assert told == {name for use, name in keys.items() if not re.search(rf"{re.escape(use)}\b", code)}


def test_the_reference_has_every_variable() -> None:
    """A row per variable that code or bootstrap reads, and a word on those between our own processes."""
    code = "".join(re.sub(r"#.*", "", path.read_text(encoding="utf-8")) for path in (ROOT / "harness").glob("*.py"))
    script = (ROOT / settings.BOOTSTRAP).read_text(encoding="utf-8")
    read = {*re.findall(r'"(HARNESS_[A-Z_]+)"', code), *re.findall(r"\bHARNESS_[A-Z_]+\b", script)}
    text = section(REFERENCE, "## Variables")
    listed = {row[0].strip("`") for row in table(text)}
    private = set(re.findall(r"`(\w+)`", text.partition("Private, between our own processes:")[2].partition(".")[0]))
    assert listed | private == read | {database.variable for database in settings.DEFAULT_DATABASES} | {"CI"}
    assert listed & private == set()


def test_the_reference_has_every_flag_of_the_bootstrap() -> None:
    """What the script's own help lists."""
    done = subprocess.run([str(ROOT / settings.BOOTSTRAP), "--help"], capture_output=True, text=True, check=True, timeout=30)
    rows = table(section(REFERENCE, "## The bootstrap"))
    assert {row[0].strip("`").split()[0] for row in rows} == set(re.findall(r"--[a-z-]+", done.stdout.replace("--user", "")))
    assert "`--server " + "|".join(settings.SERVERS) + "`" in {row[0] for row in rows}


def test_both_tables_of_exit_codes_are_the_codes() -> None:
    """Codes and classes are those of harness.errors, and the README has the same rows."""
    kinds = {str(kind.code): kind.__name__ for kind in errors.HarnessError.__subclasses__()}
    rows = table(section(REFERENCE, "## Exit codes"))
    assert {row[0]: row[1].strip("`") for row in rows if row[1]} == kinds
    codes = ["0", str(errors.TESTS_FAILED), *sorted(kinds), str(errors.BUG), "129, 130, 143"]
    assert [row[0] for row in rows] == codes
    assert [row[0] for row in table(section(README, "## Exit codes"))] == codes


def test_the_reference_has_the_plugins_fixtures() -> None:
    """A row per fixture, with its scope."""
    from harness import plugin

    found = {}
    for name, value in vars(plugin).items():
        marker = getattr(value, "_fixture_function_marker", None)
        if marker is not None and not marker.autouse:
            found[marker.name or name] = marker.scope
    assert {row[0].strip("`"): row[1] for row in table(section(REFERENCE, "## For test code"))} == found
    assert "`require_database(" in section(REFERENCE, "## For test code")
    assert callable(plugin.require_database)


def test_ci_runs_the_readmes_two_commands() -> None:
    """What the README promises a stranger is what CI types."""
    first = next(blocks(README, "sh")).splitlines()
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert first == ["test/bootstrap-stack.sh", ".venv/bin/inv test --e2e"]
    assert all(re.search(rf"step '[a-z]+' {re.escape(command)}(\s|$)", script, re.MULTILINE) for command in first)


def test_the_readme_fits_on_a_screen_or_two() -> None:
    """150 lines at most, and fsync is told."""
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150
    assert "fsync is off" in README.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", DOCUMENTS, ids=[path.name for path in DOCUMENTS])
def test_links_lead_somewhere(path: Path) -> None:
    """Every relative link names a file that is there."""
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target
