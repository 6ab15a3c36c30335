"""The boundary: one line, one code, one document, and no password in any of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import errors
from harness.errors import HarnessError, Refusal, ResetFailed, StackFailure, UsageError, boundary, conceal, redact

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _own_secrets_and_signals(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Keep concealed secrets and signal handlers within each test."""
    monkeypatch.setattr(errors, "_secrets", set())
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


def leave(body: Any, capsys: pytest.CaptureFixture[str], json_to: str = "") -> tuple[int, str]:
    """Run `body` inside a boundary and return the exit code and stderr."""
    code = 0
    try:
        with boundary("reset", json_to=json_to) as outcome:
            body(outcome)
    except SystemExit as end:
        code = int(end.code or 0)
    return code, capsys.readouterr().err


def fail_with(error: BaseException) -> Any:
    """Return a body that raises."""

    def body(_: object) -> None:
        raise error

    return body


@pytest.mark.parametrize(("kind", "code"), [(UsageError, 2), (Refusal, 3), (ResetFailed, 4), (StackFailure, 5)])
def test_an_expected_failure_is_one_line_and_its_code(kind: type[HarnessError], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Finding and next step stand on one line; there is no traceback."""
    body = fail_with(kind("database 'shop_test'\nis not ours", next="Run `inv reset --adopt shop_test`."))
    assert leave(body, capsys) == (code, "harness: database 'shop_test' is not ours. Run `inv reset --adopt shop_test`.\n")


def test_a_bug_says_so_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """An unexpected exception is code 70, told as ours."""
    code, printed = leave(fail_with(KeyError("x")), capsys)
    assert code == 70
    assert printed.startswith("Traceback (most recent call last):")
    assert printed.endswith("harness: this is a bug of the harness. Report it with the lines above.\n")


def test_a_body_sets_its_own_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    """Failed tests are an outcome, not an error."""

    def body(outcome: errors.Outcome) -> None:
        outcome.exit = 1

    assert leave(body, capsys) == (1, "")
    assert leave(lambda _: None, capsys) == (0, "")


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_with_its_code(signum: signal.Signals, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """INT, TERM and HUP are told by name and exit 128 + number."""
    assert leave(lambda _: signal.raise_signal(signum), capsys) == (code, f"harness: interrupted by {signum.name}.\n")


def test_a_signal_counts_where_the_shell_ignored_it() -> None:
    """A background job of a non-interactive shell starts with SIGINT ignored, and is interrupted all the same."""
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nfrom harness.errors import boundary\n"
    code += "with boundary('test'):\n    signal.raise_signal(signal.SIGINT)\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "harness: interrupted by SIGINT.\n")


def test_the_document_has_head_and_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Programs read code, message and next from the file that --json names."""
    path = tmp_path / "out.json"
    code, _ = leave(fail_with(Refusal("it is a standby", next="Use the primary.")), capsys, str(path))
    document = json.loads(path.read_text())
    assert code == 3
    assert set(document) == {"format", "command", "exit", "started", "seconds", "error"}
    assert (document["format"], document["command"], document["exit"]) == (1, "reset", 3)
    assert document["error"] == {"code": 3, "message": "it is a standby", "next": "Use the primary."}


def test_the_document_of_a_success_has_the_commands_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the command leaves follows the head; the error is null."""

    def body(outcome: errors.Outcome) -> None:
        outcome.document = {"databases": [{"name": "shop_test"}]}

    path = tmp_path / "out.json"
    assert leave(body, capsys, str(path)) == (0, "")
    document = json.loads(path.read_text())
    assert (document["databases"], document["error"], document["exit"]) == ([{"name": "shop_test"}], None, 0)


def test_with_a_dash_the_document_alone_is_on_stdout() -> None:
    """Everything else, a child's output included, goes to stderr."""
    code = "import os, subprocess\nfrom harness.errors import boundary\nwith boundary('test', json_to='-') as outcome:\n"
    code += "    print('mine', flush=True); subprocess.run(['echo', 'a child']); outcome.document = {'packages': []}; outcome.exit = 1\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert json.loads(done.stdout)["packages"] == []
    assert done.stderr == "mine\na child\n"


def test_an_unwritable_document_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A document that cannot be written fails the command: a program waits for it."""
    path = tmp_path / "no" / "such" / "folder.json"
    code, printed = leave(lambda _: None, capsys, str(path))
    assert code == 2
    assert printed == f"harness: the JSON document cannot be written to {str(path)!r}: No such file or directory. Name a writable file.\n"


AWKWARD = "p@:/?#%&=+ '\"$é and more"


def test_a_password_is_hidden_from_line_traceback_and_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Raw, percent-encoded and JSON-escaped: none of the three is printed or written."""
    from urllib.parse import quote

    conceal(AWKWARD)
    shown = f"server says {AWKWARD} and postgresql://u:{quote(AWKWARD, safe='')}@h/t"
    path = tmp_path / "out.json"
    for error in (ResetFailed(shown, next=shown), ValueError(shown)):
        _, printed = leave(fail_with(error), capsys, str(path))
        for text in (printed, path.read_text(), json.dumps(json.loads(path.read_text()), ensure_ascii=False)):
            assert "and more" not in text
            assert "and%20more" not in text


@pytest.mark.parametrize("password", ["test", "postgres", "exit", "a", "error"])
def test_a_common_word_as_password_does_not_blank_the_text(password: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`postgres:postgres` is the usual login of a service container: only what a DSN carries is hidden then."""
    conceal(password)
    path = tmp_path / "out.json"
    _, printed = leave(
        fail_with(Refusal(f"test database postgres exit a: postgresql://u:{password}@h/t", next="No error.")), capsys, str(path)
    )
    assert printed == "harness: test database postgres exit a: postgresql://u:***@h/t. No error.\n"
    assert set(json.loads(path.read_text())) == {"format", "command", "exit", "started", "seconds", "error"}
    assert redact(f"host=h password={password} dbname=test") == "host=h password=*** dbname=test"
    assert redact(f"host=h password='{password}' dbname=test") == "host=h password='***' dbname=test"


def test_an_empty_password_hides_nothing() -> None:
    """Trust and peer logins have none."""
    conceal("")
    assert redact("any text") == "any text"


def test_stdout_is_unbroken_after_a_boundary_without_json(capfd: pytest.CaptureFixture[str]) -> None:
    """Only --json - diverts stdout."""
    with boundary("reset"):
        os.write(1, b"line\n")
    assert capfd.readouterr().out == "line\n"
