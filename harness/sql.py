"""A migration file's text: split it into statements, find its traps, locate an error. Pure.

The lexical rules are those of psql and of the server's own scanner: quotes, dollar quotes, nested comments, E'' strings,
parentheses, and the bodies of `BEGIN ATOMIC` functions.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

MARK = "-- harness: no-transaction"
"""The line with which a file asks to run statement by statement, each in a transaction of its own."""

# Patterns stay uncompiled until a text is read: a reset that copies its template reads none.
_LEXEME = r"""(?xs)(?P<space>\s+)
      | (?P<line>--[^\r\n]*)
      | (?P<block>/\*)
      | (?P<escape>[eE]')
      | (?P<word>[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*)
      | (?P<plain>')
      | (?P<name>"[^"]*(?:"|\Z))
      | (?P<dollar>\$(?:[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_\x80-\U0010ffff]*)?\$)
      | (?P<number>[0-9][A-Za-z0-9_.]*|\$[0-9]+)
      | (?P<open>\()
      | (?P<close>\))
      | (?P<end>;)
      | (?P<meta>\\[^\r\n]*)
      | (?P<other>.)"""
_ESCAPE_END = r"(?s)\\.|''|'(?:(?:[ \t\f\v]|--[^\r\n]*)*[\r\n](?:\s|--[^\r\n]*[\r\n])*')?"
"""What matters inside an E'' string: an escape, its end, or its continuation on a later line."""
_COMMENT = r"/\*|\*/"
_COPY_END = r"(?m)^\\\.\r?$"
_SECTION = r"(?is)--\s*(?:migrate:|\+goose\s+|\+migrate\s+)(up|down)\b(.*)"
_WITHOUT_TRANSACTION = (
    r"(?i)--\s*(?:\+goose\s+no\s+transaction|(?:migrate:up|\+migrate\s+up)\b.*(?:transaction\s*:\s*false|notransaction).*)\s*"
)
_HARNESS_MARK = r"(?i)--\s*harness\s*:\s*(.*?)\s*"
_STRINGS_OFF = r"(?i)SET\s+(?:SESSION\s+|LOCAL\s+)?standard_conforming_strings\s*(?:=|TO)\s*'?(off|on)\b"
_CHAIN = r"(?i)\bAND\s+CHAIN\b"
_TO_SAVEPOINT = r"(?i)\S+\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b|\S+\s+PREPARED\b"
_FROM_STDIN = r"(?i)\bFROM\s+STDIN\b"
_TO_STDOUT = r"(?i)\bTO\s+STDOUT\b"
_HEAD = 5
"""First words that are kept of a statement: CREATE OR REPLACE FUNCTION f needs four, CREATE EXTENSION IF NOT EXISTS five."""


class Statement(NamedTuple):
    """One statement: its text without the semicolon, where it stands in the file, its first words in capitals.

    `data` is the span of the lines that follow a COPY … FROM stdin.
    """

    text: str
    start: int
    end: int
    words: tuple[str, ...]
    data: tuple[int, int] | None = None


class Place(NamedTuple):
    """Line and column, both from 1; a column counts characters."""

    line: int
    column: int

    def __str__(self) -> str:
        """line:column."""
        return f"{self.line}:{self.column}"


class File(NamedTuple):
    """One SQL file of a stream; `position` counts from 1 in the stream's order, `sha256` is of the bytes on disk."""

    stream: str
    position: int
    name: str
    path: Path
    sha256: str
    text: str

    def at(self, offset: int) -> str:
        """Return where a character stands, for a message."""
        return f"stream {self.stream!r}, {self.path}:{locate(self.text, offset)}"


class Trap(NamedTuple):
    """Something that must not reach the server: where it stands, what it is, and what to do."""

    start: int
    finding: str
    advice: str


class Script(NamedTuple):
    """What one file holds.

    `transaction` is "ours" (we begin and commit), "own" (the file does), or "none" (statement by statement). `piecewise`
    says that the text cannot go to the server as one string. `sections` says that a part for going down was left out.
    """

    statements: tuple[Statement, ...]
    transaction: str
    piecewise: bool
    traps: tuple[Trap, ...]
    sections: bool = False


def locate(text: str, offset: int) -> Place:
    """Return the line and column of a character."""
    line_start = text.rfind("\n", 0, offset) + 1
    return Place(text.count("\n", 0, offset) + 1, offset - line_start + 1)


@lru_cache(maxsize=4096)
def read(text: str) -> Script:
    """Return what a file's text holds; never fails: what cannot run is among the traps."""
    scanner = _Scanner(text)
    scanner.run()
    statements = tuple(scanner.statements)
    no_transaction = scanner.no_transaction
    transaction, traps = ("none", []) if no_transaction else _read_transactions(statements)
    found = tuple(sorted([*scanner.traps, *traps]))
    return Script(statements, transaction, scanner.piecewise or no_transaction, found, scanner.sections)


def split(text: str) -> tuple[Statement, ...]:
    """Return a file's statements; comments and empty statements are none."""
    return read(text).statements


def extensions(text: str) -> list[tuple[str, int]]:
    """Return the extensions that CREATE EXTENSION asks for, each with its offset."""
    if "extension" not in text.lower():
        return []
    found = []
    for statement in split(text):
        if statement.words[:2] == ("CREATE", "EXTENSION"):
            match = re.match(_EXTENSION, statement.text)
            if match:
                found.append(((match[1] or "").replace('""', '"') or match[2].lower(), statement.start))
    return found


_EXTENSION = r'(?i)CREATE\s+EXTENSION\s+(?:IF\s+NOT\s+EXISTS\s+)?(?:"((?:[^"]|"")+)"|([^\s";]+))'


def _read_transactions(statements: tuple[Statement, ...]) -> tuple[str, list[Trap]]:
    """Say who holds the transaction, and find what would end ours midway, leave one open, or undo all."""
    changes = [(statement, change) for statement in statements if (change := _transaction_change(statement))]
    if not changes:
        return "ours", []
    opener: Statement | None = None
    for statement, change in changes:
        if change == "begin":
            opener = opener or statement
        elif opener is None:
            return "own", [_midway(statement)]
        else:
            opener = statement if change == "chain" else None
    if opener is not None:
        return "own", [Trap(opener.start, f"leaves the transaction open that {opener.words[0]} begins", "End it with COMMIT.")]
    last, change = changes[-1]
    if statements[0] is not changes[0][0] or statements[-1] is not last or change == "prepare":
        return "own", [_midway(next(one for one, change in changes if change != "begin"))]
    if change == "undo":
        return "own", [Trap(last.start, f"undoes its own work with {last.words[0]} at its end", "End it with COMMIT.")]
    return "own", []


def _midway(statement: Statement) -> Trap:
    advice = f"Take it out, wrap the whole file in BEGIN … COMMIT, or put the line `{MARK}` on top."
    return Trap(statement.start, f"ends its transaction midway with {statement.words[0]}", advice)


def _transaction_change(statement: Statement) -> str:
    head = statement.words[:2]
    first = head[0] if head else ""
    if first == "BEGIN" or head == ("START", "TRANSACTION"):
        return "begin"
    if head == ("PREPARE", "TRANSACTION"):
        return "prepare"
    if first not in ("COMMIT", "END", "ROLLBACK", "ABORT") or re.match(_TO_SAVEPOINT, statement.text):
        return ""
    if re.search(_CHAIN, statement.text):
        return "chain"
    return "end" if first in ("COMMIT", "END") else "undo"


class _Scanner:
    """One pass over a text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.statements: list[Statement] = []
        self.traps: list[Trap] = []
        self.no_transaction = self.piecewise = self.sections = False
        self._down = self._strings_off = False
        self._begin_statement()

    def _begin_statement(self) -> None:
        self._start = self._end = -1
        self._words: list[str] = []
        self._last_word = ""
        self._parens = self._blocks = 0

    def run(self) -> None:
        match_at = re.compile(_LEXEME).match
        while (token := match_at(self.text, self.at)) is not None:
            kind = token.lastgroup or ""
            self.at = token.end()
            if kind == "space":
                continue
            if kind == "line":
                self._read_comment(token[0])
            elif kind == "block":
                self._skip_block(token.start())
            elif kind == "end" and not self._parens and not self._blocks:
                self._finish_statement(token.start())
            elif kind == "meta":
                self._read_meta(token.start(), token[0])
            else:
                self._read_part(kind, token)
        self._finish_statement(len(self.text))

    def _read_part(self, kind: str, token: re.Match[str]) -> None:
        if self._start < 0:
            self._start = token.start()
        if kind == "word":
            self._read_word(token[0].upper())
        elif kind == "open":
            self._parens += 1
        elif kind == "close":
            self._parens = max(self._parens - 1, 0)
        elif kind == "dollar":
            self._skip_behind(token[0])
        elif kind == "escape" or (kind == "plain" and self._strings_off):
            self._skip_escaped()
        elif kind == "plain":
            self._skip_behind("'")
        self._end = self.at

    def _read_word(self, word: str) -> None:
        if len(self._words) < _HEAD:
            self._words.append(word)
        if word == "ATOMIC" and self._last_word == "BEGIN" and self._makes_routine():
            self._blocks = 1
        elif self._blocks and word in ("CASE", "END") and not self._parens:
            self._blocks += 1 if word == "CASE" else -1
        self._last_word = word

    def _makes_routine(self) -> bool:
        words = self._words[:1] + self._words[3:] if self._words[1:3] == ["OR", "REPLACE"] else self._words
        return words[0] == "CREATE" and words[1:2] in (["FUNCTION"], ["PROCEDURE"])

    def _read_comment(self, comment: str) -> None:
        section = re.match(_SECTION, comment)
        if section:
            self._finish_statement(self.at - len(comment))
            self._down = section[1].lower() == "down"
            self.sections = self.sections or self._down
            self.piecewise = self.piecewise or self._down
        if re.fullmatch(_WITHOUT_TRANSACTION, comment):
            self.no_transaction = True
        mark = re.fullmatch(_HARNESS_MARK, comment)
        if mark and mark[1].lower() == "no-transaction":
            self.no_transaction = True
        elif mark and _looks_like_the_mark(mark[1]):
            self.traps.append(Trap(self.at - len(comment), f"has the unknown mark {comment!r}", f"The one mark there is: `{MARK}`."))

    def _skip_behind(self, closing: str) -> None:
        found = self.text.find(closing, self.at)
        self.at = len(self.text) if found < 0 else found + len(closing)

    def _skip_escaped(self) -> None:
        while self.at < len(self.text):
            match = re.compile(_ESCAPE_END).search(self.text, self.at)
            self.at = len(self.text) if match is None else match.end()
            if match is not None and match[0] == "'":
                return

    def _skip_block(self, start: int) -> None:
        depth = 1
        while depth:
            match = re.compile(_COMMENT).search(self.text, self.at)
            if match is None:
                self.at = len(self.text)
                if not self._down:
                    # Pieces are sent without comments: the server would never see what this one swallows.
                    self.traps.append(Trap(start, "has a comment that begins here and never ends", "Close it with */."))
                return
            self.at = match.end()
            depth += 1 if match[0] == "/*" else -1

    def _read_meta(self, start: int, line: str) -> None:
        command = line.split(maxsplit=1)[0]
        self.piecewise = True
        if self._down or (command in ("\\restrict", "\\unrestrict") and self._start < 0):
            return
        finding = f"has the psql command {command}"
        self.traps.append(
            Trap(start, finding, "Take it out: a migration holds SQL only, and psql's commands reach other databases and files.")
        )

    def _finish_statement(self, end: int) -> None:
        if self._start < 0 or self._down:
            self._begin_statement()
            return
        text = self.text[self._start : self._end]
        data = None
        if self._words[:1] == ["COPY"] and re.search(_FROM_STDIN, text):
            data = self._read_data(end)
        elif self._words[:1] == ["COPY"] and re.search(_TO_STDOUT, text):
            self.traps.append(Trap(self._start, "has a COPY … TO STDOUT, which nobody reads", "Take it out."))
        self.statements.append(Statement(text, self._start, self._end, tuple(self._words), data))
        strings = re.match(_STRINGS_OFF, text)
        if strings:
            self._strings_off = strings[1].lower() == "off"
            self.piecewise = self.piecewise or self._strings_off
        self._begin_statement()

    def _read_data(self, end: int) -> tuple[int, int]:
        self.piecewise = True
        newline = self.text.find("\n", end)
        begin = len(self.text) if newline < 0 else newline + 1
        if self.text[end + 1 : begin].strip():
            self.traps.append(Trap(end, "has more behind a COPY … FROM stdin on the same line", "Begin its data on the next line."))
        stop = re.compile(_COPY_END).search(self.text, begin)
        if stop is None:
            self.traps.append(Trap(self._start, "has COPY data that never ends", "Close it with a line `\\.`."))
            self.at = len(self.text)
            return begin, len(self.text)
        self.at = stop.end()
        return begin, stop.start()


def _looks_like_the_mark(text: str) -> bool:
    import difflib

    return " " not in text or difflib.SequenceMatcher(None, text.lower(), "no-transaction").ratio() > 0.6  # noqa: PLR2004  # difflib's own default cutoff
