"""What is to be reached, and the results as a table, as JSON and as a plot."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.measure import Spread, ratio


class Target(NamedTuple):
    """A ratio of two contestants in a set, and what it may be at most."""

    set: str
    one: str
    other: str
    at_most: float


WARM, RESET, COLD = "a reset in a warm process", "inv reset", "inv reset --fresh"
TARGETS = (
    Target("medium", RESET, "import invoke, psycopg", 1.4),
    Target("medium", "inv with our tasks, doing nothing", "inv, an empty task", 1.10),
    Target("small", WARM, "bare clones and drops", 1.6),
    Target("medium", WARM, "bare clones and drops", 1.5),
    Target("large", WARM, "bare clones and drops", 1.2),
    Target("medium", RESET, "dbmate", 0.65),
    Target("medium", RESET, "Django's test databases", 0.30),
    Target("medium", RESET, "alembic", 0.25),
    Target("medium", RESET, "pytest-postgresql", 0.20),
    Target("large", RESET, "dbmate", 0.30),
    Target("large", RESET, "Django's test databases", 0.20),
    Target("large", RESET, "alembic", 0.18),
    Target("medium", COLD, "psql, one for all files", 1.4),
)


class Figure(NamedTuple):
    """A target and what was measured."""

    target: Target
    measured: Spread

    @property
    def holds(self) -> bool:
        """Whether the median is within the target."""
        return self.measured.median <= self.target.at_most


def figures(taken: Mapping[str, Mapping[str, Sequence[float]]]) -> list[Figure]:
    """Return every target of which both sides were measured."""
    found = []
    for target in TARGETS:
        times = taken.get(target.set, {})
        if target.one in times and target.other in times:
            found.append(Figure(target, ratio(times[target.one], times[target.other])))
    return found


def table(taken: Mapping[str, Mapping[str, Sequence[float]]], phases: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Return the results as Markdown."""
    lines = ["| set | ratio, pair by pair | median (quartiles) | at most | |", "|---|---|---|---|---|"]
    for figure in figures(taken):
        target, spread = figure.target, figure.measured
        shown = f"{spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f})"
        lines.append(
            f"| {target.set} | {target.one} : {target.other} | {shown} | {target.at_most:g} | {'holds' if figure.holds else 'MISSED'} |"
        )
    for name, times in taken.items():
        count = len(next(iter(times.values())))
        lines += [
            "",
            f"### {name}: two databases, whole commands, milliseconds, {count} rounds",
            "",
            "| way | median (quartiles) |",
            "|---|---|",
        ]
        for way, values in sorted(times.items(), key=lambda item: Spread.of(item[1]).median):
            spread = Spread.of(values)
            lines.append(f"| {way} | {spread.median:.1f} ({spread.low:.1f} to {spread.high:.1f}) |")
        parts = ", ".join(f"{phase} {ms:.1f}" for phase, ms in phases.get(name, {}).get("warm", {}).items())
        lines += ["", f"Where a warm reset's time goes (ms): {parts}."]
    return "\n".join(lines) + "\n"


SHOWN = (RESET, COLD, "psql, one for all files", "psql, one per file", "dbmate", "Django's test databases", "alembic", "pytest-postgresql")
WIDTH, LEFT, ROW = 760, 210, 26


def plot(taken: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Return bars of the medians, one block for each set, readable on a light and on a dark page."""
    parts, y = [], 8
    for name, times in taken.items():
        rows = [(way, Spread.of(times[way]).median) for way in SHOWN if way in times]
        longest = max(ms for _, ms in rows)
        parts.append(f'<text class="head" x="8" y="{y + 16}">{html.escape(name)} set, two databases</text>')
        y += ROW
        for way, ms in sorted(rows, key=lambda row: row[1]):
            width = (WIDTH - LEFT - 90) * ms / longest
            kind = "ours" if way in (RESET, COLD) else "other"
            parts.append(f'<text x="{LEFT - 8}" y="{y + 16}" text-anchor="end">{html.escape(way)}</text>')
            parts.append(f'<rect class="{kind}" x="{LEFT}" y="{y + 3}" width="{width:.1f}" height="{ROW - 8}" rx="2"/>')
            parts.append(f'<text x="{LEFT + width + 6:.1f}" y="{y + 16}">{ms:,.0f} ms</text>')
            y += ROW
        y += 10
    style = (
        "text{font:13px system-ui,sans-serif;fill:#333}.head{font-weight:600}.ours{fill:#2b7a4b}.other{fill:#a9b4c0}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}.ours{fill:#4fb87a}.other{fill:#5b6672}}"
    )
    title = "<title>Median time to two pristine databases, by tool and migration set</title>"
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" role="img">'
        f"{title}<style>{style}</style>\n{body}\n</svg>\n"
    )
