"""Mission Control as a repository of its own: copied into a scratch folder, with its own cluster, run by `harness` as a child."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tomli

from tests.builders import HARNESS_ROOT, Completed, SampleRepository
from tests.scratch import _end, records_folder, start_time

APPLICATION, TEST, E2E, MAINTENANCE = "MC_DB_DSN", "TEST_DATABASE_URL", "E2E_DATABASE_URL", "MAINTENANCE_DATABASE_URL"
PREFIX = "tests/mission_control/"
SETTINGS = """\
[databases]
application = "hangar"
test = "hangar_test"
e2e = "hangar_e2e"

[[migrations]]
stream = "platform"
directory = "migrations/platform"

[[migrations]]
stream = "billing"
directory = "migrations/billing"

[packages]
test = {test}
e2e = {e2e}

[run]
residue = "off"

[stack]
ports = [18950, 18999]
directory = {directory}
"""
"""No name of it is one of this repository's own harness.toml: what works here has none hard-coded."""


class Observation(NamedTuple):
    """What one package's witness saw: seconds of one clock for all processes, tests by id, rows by table."""

    package: str
    begun: float
    ended: float
    executed: list[str]
    before: dict[str, list[str]]
    after: dict[str, list[str]]


class Mission(SampleRepository):
    """A copy of the sample application in `root` with a cluster of its own in `folder`; `state` may be shared by worktrees."""

    def __init__(self, root: Path, folder: Path, state: Path) -> None:
        self.root, self.folder, self.state, self.cluster = root, folder, state, None
        self.observations = folder / f"{root.name}.observations"
        self.observations.mkdir(parents=True)
        state.mkdir(exist_ok=True)

    def fill(self) -> None:
        """Copy the sample and write its settings, this repository's packages in this repository's order."""
        for path in ("migrations", "tests/mission_control"):
            shutil.copytree(HARNESS_ROOT / path, self.root / path, ignore=shutil.ignore_patterns("__pycache__"))
        for path in ("pyproject.toml", "tasks.py", "test/bootstrap-stack.sh"):
            self.write(path, (HARNESS_ROOT / path).read_bytes())
        (self.root / "test/bootstrap-stack.sh").chmod(0o755)
        self.write(f"{PREFIX}conftest.py", Path(__file__).with_name("observer.py").read_bytes())
        packages = tomli.loads((HARNESS_ROOT / "harness.toml").read_text())["packages"]
        ours = {role: json.dumps([path for path in paths if str(path).startswith(PREFIX)]) for role, paths in packages.items()}
        self.settings(SETTINGS.format(**ours, directory=json.dumps(str(self.folder / "clusters"))))
        self.write(".gitignore", "test/.env\ntest/.stack/\n__pycache__/\n")

    def environment(self, changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
        """Return the sample's environment without pytest's third-party plugins, which the sample does not use and which cost most of a run."""
        return super().environment({"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **(changes or {})})

    def harness(self, *arguments: str, env: Mapping[str, str | None] | None = None, timeout: float = 300) -> Completed:
        """Run the console command to its end."""
        return self.run(*arguments, command="harness", env=env, timeout=timeout)

    def document(self, *arguments: str, code: int | None = 0, env: Mapping[str, str | None] | None = None) -> dict[str, Any]:
        """Run the console command with --json, assert its exit code (None: whatever it is), and return the document."""
        path = self.folder / f"{self.root.name}.json"
        options, dashes = (arguments.index("--"), arguments[arguments.index("--") :]) if "--" in arguments else (len(arguments), ())
        done = self.harness(*arguments[:options], "--json", str(path), *dashes, env=env)
        done.expect(done.returncode if code is None else code)
        document: dict[str, Any] = json.loads(path.read_text())
        return document

    @contextlib.contextmanager
    def started(self, *arguments: str, env: Mapping[str, str | None] | None = None) -> Iterator[subprocess.Popen[str]]:
        """Run the console command beside the block, which may end it; it is gone afterwards."""
        with self.start(*arguments, command="harness", env=env, stderr=subprocess.STDOUT) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def finished(self, process: subprocess.Popen[str], code: int = 0, *phrases: str) -> str:
        """Wait for a command that was started and return its output; its code must be `code`."""
        output, _ = process.communicate(timeout=300)
        Completed(("harness",), process.returncode, output, "").expect(code, *phrases)
        return output

    def up(self) -> None:
        """Make or start the cluster, and note its process for the sweep, should this process be killed."""
        self.harness("stack-up").expect(0)
        note = {"owner": os.getpid(), "owner_started": start_time(os.getpid()), "folder": str(self.folder)}
        self._note.write_text(json.dumps({**note, "pid": self.record["pid"], "started": start_time(self.record["pid"])}))

    def down(self) -> None:
        """End the cluster by its recorded pid, while that is still the recorded process."""
        with contextlib.suppress(OSError):
            noted = json.loads(self._note.read_text())
            if noted["started"] == start_time(noted["pid"]):
                _end(noted["pid"], noted["started"])
            self._note.unlink()

    @property
    def _note(self) -> Path:
        return records_folder() / f"{os.getpid()}-{self.folder.name}-{self.root.name}.json"

    @property
    def record(self) -> dict[str, Any]:
        """What the cluster's own record says."""
        found: dict[str, Any] = json.loads((self.root / "test/.stack/data/pgharness.json").read_text())
        return found

    def variables(self) -> dict[str, str]:
        """Return test/.env's lines, by a reading of our own."""
        lines = (self.root / "test/.env").read_text().splitlines()
        return {name: value.strip("'") for name, _, value in (line.partition("=") for line in lines)}

    @contextlib.contextmanager
    def changed(self, changes: Mapping[str, str]) -> Iterator[None]:
        """Have other values in test/.env for the length of the block."""
        path = self.root / "test/.env"
        before = path.read_text()
        path.write_text("".join(f"{name}={value}\n" for name, value in {**self.variables(), **changes}.items()))
        try:
            yield
        finally:
            path.write_text(before)

    def connect(self, variable: str = MAINTENANCE, **parameters: Any) -> Any:
        """Connect by a DSN of test/.env in autocommit mode."""
        import psycopg

        return psycopg.connect(self.variables()[variable], autocommit=True, connect_timeout=10, **parameters)

    def ask(self, sql: str, variable: str = MAINTENANCE, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run one query and return its rows."""
        with self.connect(variable, **parameters) as connection:
            cursor = connection.execute(sql.encode())
            return list(cursor.fetchall()) if cursor.description else []

    def oids(self) -> dict[str, int]:
        """Return the oid of each database that is not the server's own or the harness's."""
        return dict(
            self.ask("SELECT datname::text, oid::int8 FROM pg_database WHERE NOT datistemplate AND datname !~ '^(harness_|postgres$)'")
        )

    def pytest(self, *arguments: str, env: Mapping[str, str | None] | None = None, timeout: float = 120) -> Completed:
        """Run plain pytest here, as somebody without the harness would."""
        argv = [sys.executable, "-m", "pytest", "-p", "harness.plugin", "-q", *arguments]
        done = subprocess.run(
            argv, cwd=self.root, env=self.environment(env), capture_output=True, text=True, errors="replace", check=False, timeout=timeout
        )
        return Completed(tuple(argv), done.returncode, done.stdout, done.stderr)

    @contextlib.contextmanager
    def pytest_beside(self, *arguments: str, env: Mapping[str, str | None]) -> Iterator[subprocess.Popen[str]]:
        """Run plain pytest beside the block; INT ends it afterwards, so that its fixtures clean up."""
        argv = [sys.executable, "-m", "pytest", "-p", "harness.plugin", "-q", *arguments]
        with subprocess.Popen(
            argv,
            cwd=self.root,
            env=self.environment(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                yield process
            finally:
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=30)

    @contextlib.contextmanager
    def application(self) -> Iterator[subprocess.Popen[str]]:
        """Run the application on its own database, ready and reconciling, for the length of the block."""
        env = self.environment({APPLICATION: self.variables()[APPLICATION], "MC_RECONCILE_INTERVAL": "0.02"})
        argv = [sys.executable, "-m", "tests.mission_control.application"]
        with subprocess.Popen(argv, cwd=self.root, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                assert process.stdout is not None
                ready = process.stdout.readline()
                assert ready.startswith("mission control is ready"), ready + process.stdout.read()
                yield process
            finally:
                process.terminate()
                process.communicate(timeout=30)

    def rounds(self) -> int:
        """Return how many rounds the application's reconcilers have committed."""
        ((rounds,),) = self.ask("SELECT coalesce(min(runs), 0) FROM platform.reconciler_runs", APPLICATION)
        return int(rounds)

    def watch(self) -> dict[str, str]:
        """Forget what was observed and return the variable that makes the next run's packages observe."""
        for path in self.observations.iterdir():
            path.unlink()
        return {"MISSION_OBSERVATIONS": str(self.observations)}

    def observed(self) -> list[Observation]:
        """Return what the last watched run's packages saw, in the order in which they began."""
        found = [json.loads(path.read_text()) for path in self.observations.glob("*.json")]
        return sorted((Observation(**{name: seen[name] for name in Observation._fields}) for seen in found), key=lambda seen: seen.begun)

    def caches(self) -> list[str]:
        """Return what lies here that only a cache would have left."""
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.name in ("__pycache__", ".pytest_cache"))

    def forget(self) -> None:
        """Remove every cache."""
        for path in self.caches():
            shutil.rmtree(self.root / path)

    @contextlib.contextmanager
    def gate(self, package: str) -> Iterator[None]:
        """Let `package` of watched runs wait before its first test for as long as the block lasts."""
        gate = self.observations / f"{package}.gate"
        gate.touch()
        try:
            yield
        finally:
            gate.unlink(missing_ok=True)

    def await_package(self, package: str) -> None:
        """Wait until `package` of a watched run has begun."""
        wait_until((self.observations / f"{package}.begun").exists)


def wait_until(claim: Callable[[], object], seconds: float = 120) -> None:
    """Wait until `claim` holds; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain"
        time.sleep(0.01)


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder for repositories and clusters, on memory where there is some, that other accounts may pass."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  # made with mkdtemp
    folder = Path(tempfile.mkdtemp(prefix="harness-mission-", dir=memory))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def mission_in(folder: Path, name: str = "mission control") -> Iterator[Mission]:
    """Copy the sample into a folder with a space, its cluster up, and end the cluster afterwards."""
    mission = Mission(folder / name, folder, folder / "state")
    mission.fill()
    try:
        mission.up()
        yield mission
    finally:
        mission.down()


def outcomes(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the outcome of each test of a run's document."""
    return {test["id"]: test["outcome"] for package in document["packages"] for test in package["tests"]}
