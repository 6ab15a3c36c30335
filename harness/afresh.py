"""What a child of the warm interpreter does: become what `python -m pytest` would be, and end as an interpreter ends."""

from __future__ import annotations

import atexit
import os
import runpy
import signal
import sys
import threading
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from harness.preload import Imported

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(request: dict[str, Any], imported: Imported, ready: int) -> NoReturn:
    """Tell `ready` the pid and become what `python -m pytest` would be; never return."""
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
