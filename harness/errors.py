"""Expected failures, their exit codes, and the one boundary that turns them into a line and a code."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, NoReturn

FORMAT = 1
_AS_JSON = "backslashreplace"
"""Half of a surrogate pair, as in a file's undecodable name, becomes the escape that JSON has for it."""
TESTS_FAILED = 1
BUG = 70


class HarnessError(Exception):
    """An expected failure: what it is about and what was found in `message`, what to do in `next`.

    `message` starts with the object in lower case and has no final period; `next` is a whole sentence.
    """

    code: ClassVar[int] = BUG

    def __init__(self, message: str, *, next: str) -> None:  # noqa: A002  # the JSON document's own key
        super().__init__(message)
        self.message = " ".join(message.split())
        self.next = " ".join(next.split())

    def __str__(self) -> str:
        """The one line that the user reads."""
        return f"{self.message}. {self.next}"


class UsageError(HarnessError):
    """Wrong without asking a server: settings, test/.env, a DSN's form, file names, options."""

    code = 2


class Refusal(HarnessError):
    """Refused after asking the server; nothing was touched."""

    code = 3


class ResetFailed(HarnessError):
    """Drop, create, migrate or lock failed; no test was started."""

    code = 4


class StackFailure(HarnessError):
    """No server found, cannot start, port taken, or the wrong server answers."""

    code = 5


class Interrupted(KeyboardInterrupt):
    """A signal asked us to end; a KeyboardInterrupt, so that psycopg cancels the statement at work."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


DISTINCT = 12
"""A secret of this length is hidden wherever it stands; a shorter one, such as `test`, only where a DSN would carry it."""

_secrets: set[str] = set()


def conceal(secret: str) -> None:
    """Remember a password (and its percent-encoded form) so that `redact` hides it from all we print and write."""
    if secret:
        from urllib.parse import quote

        _secrets.update((secret, quote(secret, safe="")))


def redact(text: str) -> str:
    """Return `text` with every known password replaced by stars."""
    import re

    for secret in sorted(_secrets, key=len, reverse=True):
        if len(secret) >= DISTINCT:
            text = text.replace(secret, "***")
        elif secret in text:
            text = re.sub(rf"(:|password ?= ?'?){re.escape(secret)}(?=@|'|\s|$)", r"\1***", text)
    return text


def _redacted(value: object) -> object:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: _redacted(item) for key, item in value.items()}
    return [_redacted(item) for item in value] if isinstance(value, (list, tuple)) else value


class Outcome:
    """What a command leaves for the boundary: its exit code, its part of the JSON document, and a file that keeps a copy."""

    def __init__(self) -> None:
        self.exit = 0
        self.document: dict[str, object] = {}
        self.copy = ""


def _raise_interrupted(signum: int, _frame: object) -> NoReturn:
    raise Interrupted(signum)


def listen_for_signals() -> None:
    """Make INT, TERM and HUP raise `Interrupted`, also where the parent shell had SIGINT ignored."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _raise_interrupted)


@contextmanager
def boundary(command: str, *, json_to: str = "") -> Iterator[Outcome]:
    """Run a command's body; print an expected failure as one line; write the JSON document; exit with the code.

    With `json_to` "-" the document alone reaches stdout: file descriptor 1 leads to stderr for us and every child.
    """
    listen_for_signals()
    gc.set_threshold(10_000)  # of what is imported from here on nothing goes: see harness.tasks
    outcome = Outcome()
    error: dict[str, object] | None = None
    started, clock = time.time(), time.monotonic()
    document_fd = _divert_stdout() if json_to == "-" else None
    try:
        yield outcome
    except HarnessError as failure:
        outcome.exit = failure.code
        error = {"code": failure.code, "message": failure.message, "next": failure.next}
        _print_line(str(failure))
    except Interrupted as interrupt:
        outcome.exit = 128 + interrupt.signum
        error = {"code": outcome.exit, "message": f"interrupted by {interrupt}", "next": "Run the command again."}
        _print_line(f"interrupted by {interrupt}.")
    except Exception as bug:  # noqa: BLE001  # the last line of defence: a bug is told as one
        import traceback

        outcome.exit = BUG
        error = {"code": BUG, "message": f"{type(bug).__name__}: {bug}", "next": "Report it as a bug."}
        sys.stderr.write(redact("".join(traceback.format_exception(bug))))
        _print_line("this is a bug of the harness. Report it with the lines above.")
    if json_to or outcome.copy:
        head = {"format": FORMAT, "command": command, "exit": outcome.exit, "started": started}
        tail = {"seconds": round(time.monotonic() - clock, 3), "error": error}
        text = json.dumps(_redacted({**head, **tail, **outcome.document}), indent=2, ensure_ascii=False) + "\n"
        if document_fd is not None:
            with os.fdopen(document_fd, "w", encoding="utf-8", errors=_AS_JSON) as stream:
                stream.write(text)
        for path in (outcome.copy, "" if document_fd is not None else json_to):
            _write_document(text, path)
    gc.freeze()
    if outcome.exit:
        raise SystemExit(outcome.exit)


def _print_line(text: str) -> None:
    print(f"harness: {redact(text)}", file=sys.stderr)


def _divert_stdout() -> int:
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    return saved


def _write_document(text: str, path: str) -> None:
    if not path:
        return
    try:
        with open(path, "w", encoding="utf-8", errors=_AS_JSON) as stream:  # noqa: PTH123  # pathlib costs start-up time here
            stream.write(text)
    except OSError as error:
        _print_line(f"the JSON document cannot be written to {path!r}: {error.strerror}. Name a writable file.")
        raise SystemExit(UsageError.code) from error
