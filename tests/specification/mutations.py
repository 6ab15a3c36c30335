"""Each promise, broken on purpose: what is changed in a scratch copy of this repository, and the scenario that must see it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.builders import HARNESS_ROOT, Completed

FOLDER = "tests/specification"
ISOLATION, PRISTINE, SETUP = (f"{FOLDER}/test_{name}.py" for name in ("isolation", "pristine", "setup"))


class Mutation(NamedTuple):
    """One broken promise: `edits` are pairs of a text of the harness that occurs once and what stands there instead.

    `test` is the scenario's that goes red, `symptom` a part of what it says then, in pytest's lines that explain a failure.
    """

    name: str
    edits: tuple[tuple[str, str], ...]
    test: str
    symptom: str


MUTATIONS = (
    Mutation(
        "both classes of packages share one database",
        (("    own = env.dsn(role)\n", '    own = env.dsn("test")\n'),),
        f"{ISOLATION}::test_committing_e2e",
        "test_academies_have_no_default_ladder",
    ),
    Mutation(
        "packages run on the application's database",
        (("    own = env.dsn(role)\n", '    own = env.dsn("application")\n'),),
        f"{ISOLATION}::test_live_application",
        "platform.reconciler_runs",
    ),
    Mutation(
        "the guard lets two test variables lead to one database",
        ((" and other_role != role and other.name == dsn.name:", " and not other_role:"),),
        f"{ISOLATION}::test_committing_e2e_on_a_shared_database_is_refused",
        "expected 3",
    ),
    Mutation(
        "a package begins before the one before it has ended",
        (
            (
                "results.append(_run_package(run, package, number, chosen))\n",
                (
                    "begun = globals().setdefault('_begun', {}); futures = __import__('concurrent.futures').futures;"
                    " pool = globals().setdefault('_pool', futures.ThreadPoolExecutor(2));"
                    " [begun.update({at: pool.submit(_run_package, run, each, at, chosen)})"
                    " for at, each in enumerate(chosen[: number + 1], 1) if at not in begun];"
                    " results.append(begun[number].result())\n"
                ),
            ),
            ("for package in chosen if is_possible(fork=settings.run.fork) else ():", "for package in ():"),
            ("        roots = _children() - self._before - {self.pid}\n", "        roots: set[int] = set()\n"),
            (
                "    previous = signal.signal(signal.SIGCHLD",
                "    yield  # a thread of the mutant's may handle no signal\n    return\n    previous = signal.signal(signal.SIGCHLD",
            ),
        ),
        f"{ISOLATION}::test_no_interleaving",
        "assert [('",
    ),
    Mutation(
        "the lock is dropped",
        (
            (
                "    while finding := _finding(connection, attempt):\n",
                "    while (finding := _finding(connection, attempt)) and False:\n",
            ),
        ),
        f"{ISOLATION}::test_no_interleaving_of_two_runs",
        "in use by another run",
    ),
    Mutation(
        "the guard takes the application's database for a test database",
        (("        if protected.identity in identities or same_name:\n", "        if same_name and not identities:\n"),),
        f"{ISOLATION}::test_application_left_alone_when_a_test_variable_names_it",
        "carries no stamp",
    ),
    Mutation(
        "the guard asks for neither identity nor stamp",
        (
            ("        if protected.identity in identities or same_name:\n", "        if same_name and not identities:\n"),
            ("    stamp, worktree = row.stamp, str(proof.settings.root)\n", "    return None\n"),
        ),
        f"{ISOLATION}::test_application_left_alone_when_a_test_variable_names_it",
        "exited 0, expected 3",
    ),
    Mutation(
        "a reset ends every session of the server",
        (
            (
                "    FROM pg_stat_activity a LEFT JOIN pg_roles r ON r.oid = a.usesysid WHERE a.datid = ANY(%(oids)s) AND {_CLIENTS}",
                "    FROM pg_stat_activity a LEFT JOIN pg_roles r ON r.oid = a.usesysid WHERE (a.datid = ANY(%(oids)s) OR a.application_name !~ 'harness') AND {_CLIENTS}",
            ),
            ("            if on_ended and row[5]:\n", "            if on_ended and row[5] and row[0] in wanted:\n"),
        ),
        f"{ISOLATION}::test_application_left_alone",
        "terminating connection",
    ),
    Mutation(
        "every role may connect everywhere",
        (("    for name in open_to_all(connection):\n", "    for name in ():\n"),),
        f"{ISOLATION}::test_application_left_alone_by_the_test_roles",
        "DID NOT RAISE",
    ),
    Mutation(
        "results are remembered beside the tests",
        (
            (
                """    argv = [sys.executable, "-m", "pytest", "-p", "harness.plugin", "-o", f"cache_dir={folder / 'cache'}"]\n""",
                '    argv = [sys.executable, "-m", "pytest", "-p", "harness.plugin"]\n',
            ),
        ),
        f"{PRISTINE}::test_reset_invalidates_cached_results",
        ".pytest_cache",
    ),
    Mutation(
        "what failed last time decides what runs",
        (
            (
                """    argv = [sys.executable, "-m", "pytest", "-p", "harness.plugin", "-o", f"cache_dir={folder / 'cache'}"]\n""",
                '    argv = [sys.executable, "-m", "pytest", "-p", "harness.plugin"]\n',
            ),
            ("            setattr(option, name, off)\n", "            pass\n"),
        ),
        f"{PRISTINE}::test_reset_invalidates_cached_results_of_pytest",
        "> 10",
    ),
    Mutation(
        "bytecode of the project is read",
        (('    seen[BYTECODE] = str(folder / "bytecode")\n', ""),),
        f"{PRISTINE}::test_reset_invalidates_stale_bytecode",
        "assert 1 == 2",
    ),
    Mutation(
        "a template is cloned from the previous database",
        (
            (
                "TEMPLATE {quoted(recipe.template)} {owner}",
                "TEMPLATE {quoted(recipe.name if recipe.target.oid else recipe.template)} {owner}",
            ),
        ),
        f"{PRISTINE}::test_every_run_starts_from_migrations_only",
        "left_behind",
    ),
    Mutation(
        "the last file of each stream is forgotten",
        (
            (
                "        planned.append(Planned(stream, found.files, ()))\n",
                "        planned.append(Planned(stream, found.files[:-1], ()))\n",
            ),
        ),
        f"{PRISTINE}::test_every_run_starts_from_migrations_only",
        "reconciler_runs",
    ),
    Mutation(
        "databases that exist are not reset",
        (
            (
                "    return reset.reset(run.conn",
                "    return [] if all(target.oid for target in run.targets) else reset.reset(run.conn",
            ),
        ),
        f"{PRISTINE}::test_full_suite_twice_in_a_row",
        "UniqueViolation",
    ),
    Mutation(
        "open sessions are left alone",
        (("a.state, CASE WHEN {_MAY_END} THEN pg_terminate_backend(a.pid) END", "a.state, {_MAY_END}"),),
        f"{PRISTINE}::test_open_connections_do_not_block",
        "expected 0",
    ),
    Mutation(
        "an unset variable falls back to the application's",
        (
            (
                '    text = os.environ.get(variable, "")\n',
                '    text = os.environ.get(variable) or os.environ.get(_variables["application"], "")\n',
            ),
        ),
        f"{SETUP}::test_unset_variable",
        "expected 0",
    ),
    Mutation(
        "the bootstrap writes the application's database for the tests",
        (
            (
                "record.dsn(database.variable, user, database.name).text",
                'record.dsn(database.variable, user, settings.database("application" if database.role in settings.test_roles else database.role).name).text',
            ),
        ),
        f"{SETUP}::test_bootstrap_emits_the_dsns",
        "the same database",
    ),
    Mutation(
        "the database's name is harness.toml's, whatever test/.env says",
        (
            (
                "    dsns = {role: parse_dsn(variable, values[variable]) for",
                "    dsns = {role: parse_dsn(variable, values[variable]).at(settings.database(role).name) for",
            ),
        ),
        f"{SETUP}::test_reset_and_suite_read_the_dsns_from_the_file",
        "hangar_test_2",
    ),
    Mutation(
        "another worktree's test/.env and databases are taken for one's own",
        (
            ("    if worktree != str(root) and not _is_same(worktree, root):\n", "    if not worktree:\n"),
            ("    if stamp is not None and (stamp.role, stamp.worktree) == (role, worktree):\n", "    if stamp is not None:\n"),
        ),
        f"{SETUP}::test_two_worktrees",
        "in (2, 3)",
    ),
    Mutation(
        "migrators do not wait for each other",
        (
            (
                '    while connection.execute("SELECT pg_try_advisory_lock(%s, %s)", _LOCK)',
                '    while "" and connection.execute("SELECT pg_try_advisory_lock(%s, %s)", _LOCK)',
            ),
        ),
        f"{SETUP}::test_concurrency_of_migrations",
        "already exists",
    ),
    Mutation(
        "the ledger is not read",
        (("        applied = ledger.rows.get((stream, file.name))\n", "        applied = None\n"),),
        f"{SETUP}::test_concurrency_of_migrations_after_a_reset",
        "already exists",
    ),
)


def scratch_copy(root: Path) -> None:
    """Copy what the scenarios need of this repository: another repository, which no change of reaches this one."""
    for path in ("harness", "migrations", "tests", "test/bootstrap-stack.sh", "tasks.py", "pyproject.toml", "harness.toml"):
        source, target = HARNESS_ROOT / path, root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)


def place_of(old: str) -> Path:
    """Return the one module of the harness in which the text stands, exactly once."""
    found = {path: path.read_text().count(old) for path in sorted((HARNESS_ROOT / "harness").glob("*.py"))}
    places = [path for path, count in found.items() if count]
    assert sum(found.values()) == 1, f"{old!r} stands in {[path.name for path in places]}, not once in one module"
    return places[0].relative_to(HARNESS_ROOT)


def mutate(root: Path, mutation: Mutation) -> None:
    """Break the promise in the copy."""
    for old, new in mutation.edits:
        path = root / place_of(old)
        path.write_text(path.read_text().replace(old, new))


def scenario(root: Path, test: str) -> Completed:
    """Run one test in the copy, with the copy's code; its output is what pytest says of the failure, without the test's source."""
    gone = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
    env = {name: value for name, value in os.environ.items() if name not in gone} | {"PYTHONPATH": str(root)}
    argv = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", test]
    done = subprocess.run(argv, cwd=root, env=env, capture_output=True, text=True, errors="replace", check=False, timeout=600)
    said = "\n".join(line for line in done.stdout.splitlines() if line.startswith(("E ", "ERROR "))) or done.stdout
    return Completed(tuple(argv), done.returncode, said, done.stderr)
