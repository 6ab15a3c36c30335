"""The warm interpreter: imports pytest and its plugins once, then forks a child per package. Run as a script, by its path.

It imports nothing of the worktree: coverage would miss it, and an edit between two runs would go unseen. The protocol is lines of
JSON on two pipes: first whether forking is safe here, then for each request the child's pid. A request may be announced while the
package before it runs: its child then prepares pytest, and waits for its turn before it imports anything of the project.
"""

from __future__ import annotations

import os
import sys

if not getattr(sys.flags, "safe_path", False):
    # As -m has it. The script's own folder would let our `process` or `lock` hide another library's.
    sys.path[0] = os.getcwd()  # noqa: PTH109  # before any import that it may decide

import gc
import json
import signal
from contextlib import suppress
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from harness import afresh, preload
else:

    def beside(name: str) -> ModuleType:
        """Load a module of ours by its path, as this script itself is: see above."""
        spec = spec_from_file_location(f"harness_{name}", Path(__file__).with_name(f"{name}.py"))
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    afresh, preload = beside("afresh"), beside("preload")

TURN = "HARNESS_TURN"
"""Tells our plugin the descriptor on which a child that was forked ahead waits."""


class Waiting(NamedTuple):
    """A child that was forked, its parent that goes when it is told to, and the descriptors that tell the two."""

    request: dict[str, Any]
    is_ahead: bool
    pid: int
    parent: int
    leave: int
    turn: int


def serve(requests: IO[bytes], answers: IO[bytes], imported: preload.Imported) -> None:
    """Fork a child for every request until the other end closes; an answer without a pid says that it was not possible."""
    waiting: Waiting | None = None
    for line in requests:
        request = json.loads(line)
        path = request.pop("ahead")
        is_ahead = path != ""
        if is_ahead and not preload.may_wait(preload.ROOT / path, imported):
            continue
        if waiting and (is_ahead or waiting.request != request):
            forget(waiting)
            waiting = None
        if waiting is None:
            waiting = fork(request, imported, (requests.fileno(), answers.fileno()), is_ahead=is_ahead)
        if not is_ahead:
            answer(answers, pid=let_go(waiting))
            waiting = None


def fork(request: dict[str, Any], imported: preload.Imported, ours: tuple[int, ...], *, is_ahead: bool) -> Waiting:
    """Fork a child, and a parent for it that goes when it is told to: the runner then adopts the child, and waits for it as for any other."""
    reader, writer = os.pipe()
    staying, leave = os.pipe()
    gate, turn = os.pipe()
    parent = os.fork()
    if parent == 0:
        try:
            for descriptor in (reader, leave, turn, *ours):
                os.close(descriptor)
            child = os.fork()
            if child == 0:
                os.close(staying)
                if is_ahead:
                    request["variables"][TURN] = str(gate)
                else:
                    os.close(gate)
                afresh.run(request, imported, writer)
            os.close(writer)
            os.close(gate)
            if not os.read(staying, 1):  # forgotten: the child hears of it too
                os.waitpid(child, 0)
        finally:
            os._exit(1)
    for descriptor in (writer, staying, gate):
        os.close(descriptor)
    with os.fdopen(reader) as pipe:
        return Waiting(request, is_ahead, int(pipe.read() or 0), parent, leave, turn)


def let_go(waiting: Waiting) -> int:
    """Have the runner adopt a child, and let one that was forked ahead begin; return its pid, 0 when there is none or it died meanwhile."""
    with suppress(BrokenPipeError):  # a parent that found no room to fork has gone by itself
        os.write(waiting.leave, b"1")
    os.close(waiting.leave)
    os.waitpid(waiting.parent, 0)
    pid = waiting.pid
    try:
        if waiting.is_ahead:
            os.write(waiting.turn, b"1")
    except BrokenPipeError:
        pid = 0
    os.close(waiting.turn)
    return pid


def forget(waiting: Waiting) -> None:
    """End a child whose package does not come next."""
    os.close(waiting.leave)
    os.close(waiting.turn)
    os.waitpid(waiting.parent, 0)


def answer(answers: IO[bytes], **fields: object) -> None:
    """Send one line."""
    answers.write(json.dumps(fields).encode() + b"\n")


def main() -> None:
    """Preload, say whether that went well, and serve."""
    for signum in afresh.SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    with os.fdopen(int(sys.argv[1]), "rb") as requests, os.fdopen(int(sys.argv[2]), "wb", buffering=0) as answers:
        arguments = sys.argv[3:]
        sys.argv = ["-m", *arguments]
        descriptors = preload.listed("/proc/self/fd")
        try:
            with preload.recording() as imported:
                preload.import_all(arguments, imported.left)
            preload.check_fit(descriptors)
        except BaseException as error:  # noqa: BLE001  # whatever it is, a fresh interpreter shows it to whom it concerns
            answer(
                answers,
                unfit=str(error) if isinstance(error, preload.Unfit) else f"{type(error).__name__} in the warm interpreter: {error}",
            )
            return
        gc.collect()
        gc.freeze()
        answer(answers, unfit="")
        serve(requests, answers, imported)


if __name__ == "__main__":
    main()
