"""The warm interpreter: imports pytest and its plugins once, then forks a child per package. Run as a script, by its path.

It imports nothing of the worktree: coverage would miss it, and an edit between two runs would go unseen. The protocol is lines of
JSON on two pipes: first whether forking is safe here, then for each request the child's pid.
"""

from __future__ import annotations

import os
import sys

if not getattr(sys.flags, "safe_path", False):
    # As -m has it. The script's own folder would let our `process` or `lock` hide another library's.
    sys.path[0] = os.getcwd()  # noqa: PTH109  # before any import that it may decide

import atexit
import gc
import importlib.metadata
import json
import random
import runpy
import signal
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

OURS = ("harness.bytecode", "harness.errors", "harness.outcomes", "harness.settings", "harness.targets")
"""What our plugin imports; itself it reads its package's environment."""

LATE = ("faulthandler", "pdb")
"""What every pytest imports in the course of its session."""

ROOT = Path.cwd()
SETTINGS = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Unfit(Exception):
    """Why a forked child would not be what a fresh interpreter is."""


class Imported(NamedTuple):
    """What importing did that every package's own interpreter would have done for itself."""

    said: list[tuple[str, str]]
    """What was written to sys.stdout and sys.stderr."""
    generators: list[random.Random]
    """Random generators that were seeded by the system."""


class Remembered(importlib.metadata.PathDistribution):
    """A distribution that is read once: every pytest asks each of them four times."""

    metadata = cached_property(importlib.metadata.PathDistribution.metadata.fget)  # type: ignore[attr-defined]  # a property's function
    entry_points = cached_property(importlib.metadata.PathDistribution.entry_points.fget)  # type: ignore[attr-defined]  # as above
    files = cached_property(importlib.metadata.PathDistribution.files.fget)  # type: ignore[attr-defined]  # as above


# --- before the first fork


@contextmanager
def recording() -> Iterator[Imported]:
    """Record what is written, instead of showing it, and who is seeded by chance."""
    found = Imported([], [])
    seed = random.Random.seed

    def recorded(self: random.Random, *arguments: Any, **named: Any) -> None:
        seed(self, *arguments, **named)
        found.generators[:] = [each for each in found.generators if each is not self]
        if not named and arguments in {(), (None,)}:
            found.generators.append(self)

    def writer(name: str) -> Callable[[str], int]:
        def write(text: str) -> int:
            found.said.append((name, text))
            return len(text)

        return write

    # Wrapped, and not replaced: a plugin may ask a stream whether it is a terminal.
    streams: dict[str, Any] = {"stdout": sys.stdout, "stderr": sys.stderr}
    for name, stream in streams.items():
        stream.write = writer(name)
    random.Random.seed = recorded  # type: ignore[method-assign]  # for the time of the imports
    try:
        yield found
    finally:
        random.Random.seed = seed  # type: ignore[method-assign]  # as above
        for stream in streams.values():
            del stream.write


def preload(arguments: list[str]) -> None:
    """Import pytest, the plugins that it would load by itself, and psycopg, their assertions rewritten as pytest does."""
    from _pytest.assertion import install_importhook
    from _pytest.config import get_config

    for name in LATE:
        importlib.import_module(name)
    remember_distributions()
    config = get_config()
    hook = install_importhook(config)
    writes_no_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, False  # rewritten plugins are not compiled by an installer
    try:
        plugins = [] if is_autoload_off(arguments) else list(find_plugins(hook, settings_text(arguments)))
        for point in plugins:
            load(point)
        if any(point.name == "hypothesispytest" for point in plugins):
            import hypothesis  # noqa: F401  # its plugin imports it at the latest for its summary
        if not is_of_worktree("harness"):
            hook.mark_rewrite("harness")
            for name in OURS:
                importlib.import_module(name)
    finally:
        sys.dont_write_bytecode = writes_no_bytecode
        sys.meta_path.remove(hook)
        config._ensure_unconfigure()  # noqa: SLF001  # pytest's own way to end a config that was never used
    if not is_of_worktree("psycopg"):
        try:
            import psycopg  # noqa: F401
        except ImportError:
            return  # there is none, or no libpq: a test that asks for it will be told


def find_plugins(hook: Any, settings: str) -> Iterator[importlib.metadata.EntryPoint]:
    """Mark and return the plugins of all distributions; not ours, nor what may be edited between two runs or was switched off."""
    from _pytest.config import _iter_rewritable_modules

    for distribution in importlib.metadata.distributions():
        points = [point for point in distribution.entry_points if point.group == "pytest11"]
        names = list(_iter_rewritable_modules(str(file) for file in distribution.files or [])) if points else []
        is_editable = not names
        if is_editable or any(point.value.startswith("harness.") or is_of_worktree(point.module) for point in points):
            continue
        hook.mark_rewrite(*names)
        yield from (point for point in points if f"no:{point.name}" not in settings)


def load(point: importlib.metadata.EntryPoint) -> None:
    """Import a plugin; raises Unfit when it cannot be."""
    try:
        point.load()
    except BaseException as error:
        raise Unfit(f"plugin {point.name!r} cannot be imported: {error!r}") from error


def settings_text(arguments: list[str]) -> str:
    """Return everything that may switch a plugin off, unread: what is not imported early is imported later."""
    texts = [path.read_text(encoding="utf-8", errors="replace") for name in SETTINGS if (path := ROOT / name).is_file()]
    return "\n".join([*texts, *arguments])


def is_autoload_off(arguments: list[str]) -> bool:
    """Say whether pytest loads no plugin by itself."""
    return bool(os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD")) or "--disable-plugin-autoload" in settings_text(arguments)


def is_of_worktree(module: str) -> bool:
    """Say whether a module's code lies in the worktree, and not in an environment inside it."""
    spec = find_spec(module.partition(".")[0])
    places = [spec.origin] if spec and spec.origin else list(spec.submodule_search_locations or []) if spec else []
    return any(ROOT in Path(place).parents and Path(sys.prefix) not in Path(place).parents for place in places)


def remember_distributions() -> None:
    """Have the distributions read now, and not by each child; whoever installs one, or adds a folder, finds what there is then."""
    read = importlib.metadata.distributions
    found = [Remembered(each._path) if type(each) is importlib.metadata.PathDistribution else each for each in read()]  # noqa: SLF001  # its one field
    folders = {folder: changed(folder) for folder in sys.path}
    for each in found:
        if any(point.group == "pytest11" for point in each.entry_points):
            _ = each.files, each.metadata

    def distributions(**context: Any) -> Iterator[importlib.metadata.Distribution]:
        is_as_it_was = not context and {folder: changed(folder) for folder in sys.path} == folders
        return iter(found) if is_as_it_was else iter(read(**context))

    importlib.metadata.distributions = distributions


def changed(folder: str) -> int:
    """Return when something was last added to a folder; 0 where there is none."""
    try:
        return os.stat(folder or ".").st_mtime_ns  # noqa: PTH116  # a hot path
    except OSError:
        return 0


def listed(path: str) -> int:
    """Return how many entries a folder of /proc has."""
    return len(os.listdir(path))  # noqa: PTH208  # names only


def check_fit(descriptors: int) -> None:
    """Raise Unfit for what a forked child would share with the next one, or lose."""
    if listed("/proc/self/task") > 1:
        raise Unfit("a plugin has started a thread")
    if Path(f"/proc/self/task/{os.getpid()}/children").read_text():
        raise Unfit("a plugin has started a process")
    if listed("/proc/self/fd") > descriptors:
        raise Unfit("a plugin has opened a file or a connection and keeps it")
    if sys.gettrace() is not None or sys.getprofile() is not None:
        raise Unfit("the interpreter is traced from its start")
    monitoring = getattr(sys, "monitoring", None)
    if monitoring and any(monitoring.get_tool(number) for number in range(6)):
        raise Unfit("the interpreter is monitored from its start")


def serve(requests: IO[bytes], answers: IO[bytes], imported: Imported) -> None:
    """Fork a child for every request until the other end closes; an answer without a pid says that it was not possible."""
    for line in requests:
        reader, writer = os.pipe()
        between = os.fork()
        if between == 0:
            # The child becomes an orphan, and so the runner's own child, which waits for it as for any other.
            try:
                if os.fork() == 0:
                    for descriptor in (reader, requests.fileno(), answers.fileno()):
                        os.close(descriptor)
                    run(json.loads(line), imported, writer)
            finally:
                os._exit(1)
        os.close(writer)
        os.waitpid(between, 0)
        with os.fdopen(reader) as pipe:
            answer(answers, pid=int(pipe.read() or 0))


def answer(answers: IO[bytes], **fields: object) -> None:
    """Send one line."""
    answers.write(json.dumps(fields).encode() + b"\n")


# --- in the child


def run(request: dict[str, Any], imported: Imported, ready: int) -> NoReturn:
    """Become what `python -m pytest` would be, and then tell `ready` the pid; never return."""
    os.setsid()
    for signum in SIGNALS:
        signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
    if request["output"]:
        descriptor = os.open(request["output"], os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        sys.stdout.reconfigure(line_buffering=False)  # type: ignore[union-attr]  # the interpreter's own
    os.write(ready, str(os.getpid()).encode())
    os.close(ready)
    end(exit_code_of(lambda: become_pytest(request, imported)))


def become_pytest(request: dict[str, Any], imported: Imported) -> None:
    """Do what the interpreter does for `-m pytest`, and what its plugins' imports would have done."""
    for name, value in request["variables"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    for generator in imported.generators:
        generator.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    sys.argv = ["-m", *request["arguments"]]
    sys.orig_argv = [sys.executable, "-m", "pytest", *request["arguments"]]
    for name, text in imported.said:
        getattr(sys, name).write(text)
    sys.modules["__main__"] = types.ModuleType("__main__")
    runpy._run_module_as_main("pytest")  # type: ignore[attr-defined]  # noqa: SLF001  # what -m calls


def exit_code_of(program: Callable[[], None]) -> int:
    """Return what the interpreter would exit with; minus a signal where it would end by that."""
    try:
        program()
    except SystemExit as request:
        if request.code is None or isinstance(request.code, int):
            return int(request.code or 0)
        sys.stderr.write(f"{request.code}\n")
        return 1
    except BaseException as error:  # noqa: BLE001  # what the interpreter does with an exception that nobody caught
        frames = error.__traceback__ and error.__traceback__.tb_next and error.__traceback__.tb_next.tb_next  # without ours
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def end(code: int) -> NoReturn:
    """Do what the interpreter does at its end: wait for threads, call what was registered, flush; without tearing down what we share."""
    succeeds(threading._shutdown)  # type: ignore[attr-defined]  # noqa: SLF001  # as at the interpreter's own end
    succeeds(atexit._run_exitfuncs)  # noqa: SLF001  # as at the interpreter's own end
    if not succeeds(lambda: flush(sys.stdout)):
        code = 120  # the interpreter's own
    succeeds(lambda: flush(sys.stderr))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        signal.raise_signal(-code)
    os._exit(code & 0xFF)


def succeeds(step: Callable[[], None]) -> bool:
    """Take a step of the interpreter's end; whatever it raises is printed, and the next one follows."""
    try:
        step()
    except BaseException as error:  # noqa: BLE001  # as at the interpreter's own end
        sys.excepthook(type(error), error, error.__traceback__)
        return False
    return True


def flush(stream: Any) -> None:
    """Flush a standard stream, unless the program closed it or put nothing in its place."""
    if stream is not None and not stream.closed:
        stream.flush()


def main() -> None:
    """Preload, say whether that went well, and serve."""
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    with os.fdopen(int(sys.argv[1]), "rb", buffering=0) as requests, os.fdopen(int(sys.argv[2]), "wb", buffering=0) as answers:
        arguments = sys.argv[3:]
        sys.argv = ["-m", *arguments]
        descriptors = listed("/proc/self/fd")
        try:
            with recording() as imported:
                preload(arguments)
            check_fit(descriptors)
        except BaseException as error:  # noqa: BLE001  # whatever it is, a fresh interpreter shows it to whom it concerns
            answer(answers, unfit=str(error) if isinstance(error, Unfit) else f"{type(error).__name__} in the warm interpreter: {error}")
            return
        gc.collect()
        gc.freeze()
        answer(answers, unfit="")
        serve(requests, answers, imported)


if __name__ == "__main__":
    main()
