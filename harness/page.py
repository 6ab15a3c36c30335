"""One self-contained HTML page of a run: the time line, what failed and what it printed, what was left behind."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from html import escape
from pathlib import Path

from harness.errors import UsageError, redact
from harness.report import ended_lines, rerun_command, result_line, seconds, verdict_lines
from harness.results import BAD_OUTCOMES, DatabaseReset, PackageResult, TestResult, encode, totals

_COLOURS = {"passed": "#2e7d4f", "skipped": "#8a8f98", "empty": "#8a8f98", "not-run": "#c8ccd2"}
_BAD = "#b3261e"

_STYLE = """
:root { color-scheme: light; font: 15px/1.5 system-ui, sans-serif; color: #1c1e21; background: #fff; }
body { margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.lead { margin: 0; color: #555; } .bad { color: #b3261e; } .good { color: #2e7d4f; }
.row { display: grid; grid-template-columns: 16rem 1fr 9rem; gap: .75rem; align-items: center; padding: .15rem 0; }
.row a, .row span { overflow-wrap: anywhere; } .lane { position: relative; height: 1.1rem; background: #f1f2f4; border-radius: 3px; }
.bar { position: absolute; top: 0; bottom: 0; min-width: 3px; border-radius: 3px; }
.time { text-align: right; font-variant-numeric: tabular-nums; color: #555; }
pre, code { font: 13px/1.45 ui-monospace, monospace; } pre { background: #f6f7f8; padding: .75rem; overflow-x: auto; border-radius: 4px; white-space: pre-wrap; overflow-wrap: anywhere; }
details { border-top: 1px solid #e3e5e8; padding: .4rem 0; } summary { cursor: pointer; overflow-wrap: anywhere; } summary .time { margin-left: .75rem; }
table { border-collapse: collapse; width: 100%; } td { padding: .15rem .75rem .15rem 0; vertical-align: top; overflow-wrap: anywhere; border-top: 1px solid #eef0f2; }
"""


def render(results: Sequence[PackageResult], *, pristine: bool, doubts: Sequence[str] = (), databases: Iterable[DatabaseReset] = ()) -> str:
    """Return the page; it asks nothing of the network and holds no known password."""
    count = totals(results)
    verdict = verdict_lines(results, pristine=pristine, doubts=doubts)[0]
    tone = "good" if all(result.fine for result in results) else "bad"
    started = min((result.started for result in results), default=0.0)
    when = datetime.fromtimestamp(started, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    outcomes = ", ".join(f"{count[name]} {name}" for name in ("passed", "failed", "error", "skipped", "xfailed", "xpassed") if count[name])
    parts = [
        f"<h1 class={tone}>{escape(verdict)}</h1>",
        f"<p class=lead>{when}: {escape(outcomes or 'no test ran')}</p>",
        "<h2>Packages</h2>",
        *_time_line(results, started),
        *_failures(results),
        *_left_behind(results, list(ended_lines(databases))),
        "<h2>All tests</h2>",
        *(_tests(result) for result in results if result.tests),
    ]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
    body = "\n".join(parts)
    return redact(
        f"<!doctype html>\n<html lang=en><head>{head}<title>{escape(verdict)}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def write(
    path: Path, results: Sequence[PackageResult], *, pristine: bool, doubts: Sequence[str] = (), databases: Iterable[DatabaseReset] = ()
) -> None:
    """Write the page to `path`; UsageError when that cannot be written."""
    text = render(results, pristine=pristine, doubts=doubts, databases=databases)
    try:
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"the HTML page cannot be written to {str(path)!r}: {error.strerror}", next="Name a writable file.") from None


def _time_line(results: Sequence[PackageResult], started: float) -> Iterable[str]:
    whole = max([result.started + result.seconds - started for result in results], default=0.0) or 1.0
    for number, result in enumerate(results):
        left, width = 100 * (result.started - started) / whole, 100 * result.seconds / whole
        colour = _COLOURS.get(result.status, _BAD) if result.fine or result.status == "not-run" else _BAD
        bar = f'<div class=bar style="left:{min(left, 99.5):.2f}%;width:{width:.2f}%;background:{colour}"></div>'
        is_told = not result.fine and result.status != "not-run"
        name = f"<a href=#package-{number}>{escape(result.package)}</a>" if is_told else f"<span>{escape(result.package)}</span>"
        title = escape(result_line(result), quote=True)
        yield f'<div class=row title="{title}">{name}<div class=lane>{bar}</div><span class=time>{escape(result.status)} {seconds(result.seconds)}</span></div>'


def _failures(results: Sequence[PackageResult]) -> Iterable[str]:
    bad = [(number, result) for number, result in enumerate(results) if not result.fine and result.status != "not-run"]
    if bad:
        yield "<h2>Not fine</h2>"
    for number, result in bad:
        yield f"<section id=package-{number}><h3>{escape(result_line(result))}</h3>"
        if not any(test.outcome in BAD_OUTCOMES for test in result.tests):
            yield f"<pre>{escape(rerun_command(result, None))}</pre>"
        yield from (_failure(result, test) for test in result.tests if test.outcome in BAD_OUTCOMES)
        yield "</section>"


def _failure(result: PackageResult, test: TestResult) -> str:
    head = f"<summary><b class=bad>{escape(test.outcome)}</b> {escape(test.id)}<span class=time>{seconds(test.seconds)}</span></summary>"
    reason = f"<p>{escape(test.reason)}</p>" if test.reason else ""
    output = f"<pre>{escape(test.output)}</pre>" if test.output else ""
    return f"<details open>{head}{reason}{output}<pre>{escape(rerun_command(result, test))}</pre></details>"


def _left_behind(results: Sequence[PackageResult], ended: Sequence[str]) -> Iterable[str]:
    found = [f"<li>{escape(line)}</li>" for line in ended]
    for result in results:
        found += [f"<li>{escape(result.package)}: a process, <code>{escape(command)}</code></li>" for command in result.processes]
        if result.residue:
            residue = json.dumps(encode(result.residue), indent=2, ensure_ascii=False)
            found.append(f"<li>{escape(result.package)}<pre>{escape(residue)}</pre></li>")
    return ["<h2>Left behind</h2>", "<ul>", *found, "</ul>"] if found else []


def _tests(result: PackageResult) -> str:
    rows = "".join(
        f"<tr><td>{escape(test.outcome)}</td><td>{escape(test.id)}</td><td>{escape(test.reason)}</td><td class=time>{seconds(test.seconds)}</td></tr>"
        for test in result.tests
    )
    return f"<details><summary>{escape(result_line(result))}</summary><table>{rows}</table></details>"
