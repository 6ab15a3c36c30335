"""Our side of the warm interpreter: start it beside the reset, have it fork a package's child, end it."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from harness.process import KILL, LINUX, Process, signal_pid, start

SCRIPT = Path(__file__).with_name("warm.py")

FORK_SECONDS = 10.0
"""How long a fork may take; it takes milliseconds."""

LOST = "the warm interpreter has ended by itself"


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

    def __init__(self, env: Mapping[str, str], cwd: Path, arguments: Sequence[str], say: Callable[[str], None]) -> None:
        self._say = say
        self._env, self._cwd, self._arguments = dict(env), cwd, tuple(arguments)
        self._begin()

    def _begin(self) -> None:
        self._is_fit: bool | None = None
        self._has_forked = False
        their_requests, requests = os.pipe()
        answers, their_answers = os.pipe()
        try:
            argv = [sys.executable, str(SCRIPT), str(their_requests), str(their_answers), *self._arguments]
            self._popen = start(argv, env=self._env, cwd=self._cwd, pass_fds=(their_requests, their_answers))
        finally:
            os.close(their_requests)
            os.close(their_answers)
        self._requests = os.fdopen(requests, "wb", buffering=0)
        self._answers = os.fdopen(answers, "rb")

    def warm_up(self, timeout: float | None) -> None:
        """Wait until it has imported everything, and say why packages cannot be forked where they cannot.

        A plugin whose import takes longer than `timeout` seconds would take as long in the package's own interpreter.
        """
        if self._is_fit is None:
            unfit = str(self._receive(timeout).get("unfit", LOST))
            self._is_fit = not unfit
            if unfit:
                self._say(f"pytest starts anew for each package: {unfit}")

    def announce(self, argv: Sequence[str], *, env: Mapping[str, str], output: Path | None) -> None:
        """Have the child that will be started with `argv`, whose last argument is its package's path, prepare itself while another runs."""
        if self._is_fit:
            self._request(argv, env, str(output) if output else None, path=argv[-1])

    def start(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: IO[bytes] | None = None) -> Process:
        """Start `argv`, this Python with `-m pytest`, as a forked child where that is the same, else anew."""
        pid = self._fork(argv, env, output) if self._is_fit else 0
        return Forked(pid) if pid else start(argv, env=env, cwd=cwd, output=output)

    def _request(self, argv: Sequence[str], env: Mapping[str, str], output: str | None, *, path: str = "") -> None:
        variables = {name: env.get(name) for name in {*env, *self._env} if env.get(name) != self._env.get(name)}
        request = {"ahead": path, "arguments": list(argv[3:]), "variables": variables, "output": output}
        with suppress(BrokenPipeError):
            self._requests.write(json.dumps(request).encode() + b"\n")
        self._has_forked = True

    def _fork(self, argv: Sequence[str], env: Mapping[str, str], output: IO[bytes] | None) -> int:
        """Return the child's pid; 0 when the machine has no room for it, or no interpreter is left."""
        self._request(argv, env, output.name if output else None)
        pid = self._receive(FORK_SECONDS).get("pid")
        if pid is None:
            self._is_fit = False
            self._say(f"pytest starts anew for each package from here on: {LOST}")
        return int(pid or 0)

    def _receive(self, timeout: float | None) -> dict[str, Any]:
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        line = self._answers.readline() if poll.poll(None if timeout is None else timeout * 1000) else b""
        return dict(json.loads(line)) if line else {}

    def renew(self) -> None:
        """Begin anew where it was used: two runs shall differ in what differs between interpreters, as the order of a set does."""
        if self._is_fit and self._has_forked:
            self.close()
            self._begin()

    def close(self) -> None:
        """End it at once: it has nothing to save, and what it forked is not its any more."""
        self._requests.close()
        self._answers.close()
        signal_pid(self._popen.pid, KILL)
        self._popen.wait()


def is_possible(*, fork: bool) -> bool:
    """Say whether this machine and the settings let packages be forked; macOS's libraries do not survive a fork."""
    return fork and LINUX
