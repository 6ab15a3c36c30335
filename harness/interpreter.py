"""Our side of the warm interpreter: start it beside the reset, have it fork a package's child, end it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from harness.process import KILL, LINUX, Process, signal_pid, start

SCRIPT = Path(__file__).with_name("warm.py")


class Forked:
    """A forked child, ours by adoption."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, negative for a signal; subprocess.TimeoutExpired after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            pid, status = os.waitpid(self.pid, 0 if deadline is None else os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif deadline is not None and time.monotonic() >= deadline:
                import subprocess

                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            else:
                time.sleep(0.001)
        return self.returncode


class Interpreter:
    """One warm interpreter for the packages of one database: a plugin may read that database's variable at its import.

    Where forking would not be the same as a fresh `python -m pytest`, packages get that, and `say` is told why.
    """

    def __init__(self, env: Mapping[str, str], cwd: Path, say: Callable[[str], None]) -> None:
        self._say = say
        self._env = dict(env)
        self._unusable: str | None = None
        their_requests, requests = os.pipe()
        answers, their_answers = os.pipe()
        try:
            argv = [sys.executable, str(SCRIPT), str(their_requests), str(their_answers), str(cwd)]
            self._popen = start(argv, env=env, cwd=cwd, pass_fds=(their_requests, their_answers))
        finally:
            os.close(their_requests)
            os.close(their_answers)
        self._requests = os.fdopen(requests, "wb", buffering=0)
        self._answers = os.fdopen(answers, "rb")

    def warm_up(self) -> None:
        """Wait until it has imported everything, and say why packages cannot be forked where they cannot."""
        if self._unusable is None:
            self._unusable = str(self._receive().get("unsafe", "the warm interpreter has ended by itself"))
            if self._unusable:
                self._say(f"pytest starts anew for each package: {self._unusable}")

    def start(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: IO[bytes] | None = None) -> Process:
        """Start `argv`, this Python with `-m pytest`, as a forked child where that is the same, else anew."""
        if self._unusable or self._is_for_the_start(env):
            return start(argv, env=env, cwd=cwd, output=output)
        request = {"arguments": list(argv[3:]), "env": dict(env), "cwd": str(cwd), "output": output.name if output else None}
        with suppress(BrokenPipeError):
            self._requests.write(json.dumps(request).encode() + b"\n")
        pid = self._receive().get("pid")
        if pid is None:
            self._unusable = "the warm interpreter has ended by itself"
            return start(argv, env=env, cwd=cwd, output=output)
        return Forked(pid)

    def _is_for_the_start(self, env: Mapping[str, str]) -> bool:
        """Say whether a variable differs that counts only when an interpreter starts."""
        names = {name for name in (*env, *self._env) if name.startswith("PYTHON")}
        return any(env.get(name) != self._env.get(name) for name in names)

    def _receive(self) -> dict[str, Any]:
        line = self._answers.readline()
        return dict(json.loads(line)) if line else {}

    def close(self) -> None:
        """End it at once: it has nothing to save, and what it forked is not its any more."""
        self._requests.close()
        self._answers.close()
        signal_pid(self._popen.pid, KILL)
        self._popen.wait()


def is_possible(*, fork: bool) -> bool:
    """Say whether this machine and the settings let packages be forked; macOS's libraries do not survive a fork."""
    return fork and LINUX
