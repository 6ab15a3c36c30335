"""The warm interpreter: imports pytest and its plugins once, then forks a child per package. Run as a script, by its path.

It imports nothing else of the harness, and nothing of the worktree: coverage would miss it, and an edit between two runs
would go unseen. The protocol is lines of JSON on two pipes: first whether forking is safe here, then for each request the child's pid.
"""

from __future__ import annotations

import sys

ROOT = sys.argv[3]
# The script's own folder stands first: our `process` or `lock` would hide another library's.
sys.path[0] = ROOT

import atexit  # noqa: E402
import gc  # noqa: E402
import importlib.metadata  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import runpy  # noqa: E402
import signal  # noqa: E402
import threading  # noqa: E402
import traceback  # noqa: E402
from importlib.util import find_spec  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import IO, Any, NoReturn  # noqa: E402

OURS = "harness.plugin"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def preload() -> None:
    """Import pytest, the plugins that it would load by itself, and psycopg, their assertions rewritten as pytest does."""
    from _pytest.assertion import install_importhook
    from _pytest.config import get_config

    config = get_config()
    hook = install_importhook(config)
    try:
        for distribution in importlib.metadata.distributions():
            points = [point for point in distribution.entry_points if point.group == "pytest11"]
            if points and not os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
                import_plugins(hook, distribution, points)
    finally:
        sys.meta_path.remove(hook)
        config._ensure_unconfigure()  # noqa: SLF001  # pytest's own way to end a config that was never used
    if find_spec("psycopg"):
        import psycopg  # noqa: F401


def import_plugins(hook: Any, distribution: importlib.metadata.Distribution, points: list[importlib.metadata.EntryPoint]) -> None:
    """Import one distribution's plugins; not ours, which reads its package's environment, nor what may be edited between two runs."""
    from _pytest.config import _iter_rewritable_modules

    names = list(_iter_rewritable_modules(str(file) for file in distribution.files or []))
    is_editable = not names
    if is_editable or any(point.module == OURS or is_of_worktree(point.module) for point in points):
        return
    hook.mark_rewrite(*names)
    for point in points:
        point.load()


def is_of_worktree(module: str) -> bool:
    """Say whether a module's code lies in the worktree, and not in an environment inside it."""
    spec = find_spec(module.partition(".")[0])
    places = [spec.origin] if spec and spec.origin else list(spec.submodule_search_locations or []) if spec else []
    return any(Path(ROOT) in Path(place).parents and Path(sys.prefix) not in Path(place).parents for place in places)


def why_unsafe() -> str:
    """Return what would make a forked child differ from a fresh interpreter; empty when nothing would."""
    threads = os.listdir("/proc/self/task")  # noqa: PTH208  # names only
    if len(threads) > 1:
        return "a plugin has started a thread"
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return "the interpreter is traced from its start"
    monitoring = getattr(sys, "monitoring", None)
    if monitoring and any(monitoring.get_tool(number) for number in range(6)):
        return "the interpreter is monitored from its start"
    return ""


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Fork a child for every request until the other end closes."""
    for line in requests:
        request = json.loads(line)
        reader, writer = os.pipe()
        between = os.fork()
        if between == 0:
            # The child becomes an orphan, and so the runner's own child, which waits for it as for any other.
            child = os.fork()
            if child == 0:
                os.close(reader)
                os.close(writer)
                requests.close()
                answers.close()
                run(request)
            os.write(writer, str(child).encode())
            os._exit(0)
        os.close(writer)
        os.waitpid(between, 0)
        with os.fdopen(reader) as pipe:
            answer(answers, pid=int(pipe.read()))


def answer(answers: IO[bytes], **fields: object) -> None:
    """Send one line."""
    answers.write(json.dumps(fields).encode() + b"\n")


def run(request: dict[str, Any]) -> NoReturn:
    """Become what `python -m pytest` would be: own session, given environment, folder and arguments; never return."""
    code = 1
    try:
        os.setsid()
        for signum in SIGNALS:
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
        if request["output"]:
            descriptor = os.open(request["output"], os.O_WRONLY | os.O_APPEND)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            os.close(descriptor)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=stream is sys.stderr or stream.isatty())  # type: ignore[union-attr]  # the interpreter's own
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        sys.path[0] = request["cwd"]
        sys.argv = ["pytest", *request["arguments"]]
        sys.orig_argv = [sys.executable, "-m", "pytest", *request["arguments"]]
        code = exit_code_of_pytest()
    finally:
        finish(code)


def exit_code_of_pytest() -> int:
    """Run `pytest` as __main__ and return what the interpreter would exit with."""
    try:
        runpy.run_module("pytest", run_name="__main__", alter_sys=True)
    except SystemExit as request:
        if request.code is None or isinstance(request.code, int):
            return request.code or 0
        sys.stderr.write(f"{request.code}\n")
        return 1
    except BaseException:  # noqa: BLE001  # what the interpreter does with an exception that nobody caught
        traceback.print_exc()
        return 1
    return 0


def finish(code: int) -> NoReturn:
    """Do what the interpreter does at its end: wait for threads, call what was registered, flush; without tearing down what we share."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  # as at the interpreter's own end
        atexit._run_exitfuncs()  # noqa: SLF001  # as at the interpreter's own end
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(code & 0xFF)


def main() -> None:
    """Preload, say so, and serve."""
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    with os.fdopen(int(sys.argv[1]), "rb", buffering=0) as requests, os.fdopen(int(sys.argv[2]), "wb", buffering=0) as answers:
        preload()
        unsafe = why_unsafe()
        gc.collect()
        gc.freeze()
        answer(answers, unsafe=unsafe)
        if not unsafe:
            serve(requests, answers)


if __name__ == "__main__":
    main()
