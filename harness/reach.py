"""What a stream's files would do to other databases than the one they are for; asks no server."""

from __future__ import annotations

import re
from collections.abc import Collection

from harness.errors import ResetFailed
from harness.sql import Statement, split
from harness.streams import Plan

_NAME = r'(?:"(?:[^"]|"")+"|[^\W\d][\w$]*)'
_NAMED = rf"""(?ix) (?: (?:ALTER | (?:COMMENT | SECURITY \s+ LABEL) (?:\s+ FOR \s+ \S+)? \s+ ON) \s+
      | ALTER \s+ (?:ROLE|USER) \s+ (?:{_NAME}) \s+ IN \s+ | (?:GRANT|REVOKE) \b .*? \b ON \s+ )
      DATABASE \s+ ({_NAME} (?:\s*,\s* {_NAME})*)"""


def check(plan: Plan, target: str, protected: Collection[str]) -> None:
    """Raise ResetFailed, before anything of `plan` runs, for a file that makes or drops a database, or acts on a protected one.

    A DO block's text and a command's doings are not read. `target` is the name that the files may say for their own.
    """
    for planned in plan.streams:
        for file in planned.files:
            if "database" not in file.text.lower():
                continue
            for statement in split(file.text):
                finding = _finding(statement, target, protected)
                if finding:
                    raise ResetFailed(f"{file.at(statement.start)} {finding[0]}; nothing of the file was run", next=finding[1])


def _finding(statement: Statement, target: str, protected: Collection[str]) -> tuple[str, str] | None:
    if statement.words[1:2] == ("DATABASE",) and statement.words[0] in ("CREATE", "DROP"):
        return f"has a {statement.words[0]} DATABASE", "Take it out: a stream makes what is inside one database."
    for application in set(named(statement.text)) & set(protected) - {target}:
        advice = "Name the database that the file runs on: in a DO block, EXECUTE format('ALTER DATABASE %I …', current_database())."
        return f"acts on the application's database {application!r}", advice
    return None


def named(statement: str) -> list[str]:
    """Return the databases whose rights, settings, comment or other attributes a statement changes."""
    match = re.match(_NAMED, statement)
    if match is None:
        return []
    return [name[1:-1].replace('""', '"') if name.startswith('"') else name.lower() for name in re.findall(_NAME, match[1])]
