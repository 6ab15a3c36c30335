"""The generated migration sets: the same SQL for each tool."""

from __future__ import annotations

from typing import NamedTuple

TABLE = """\
CREATE TABLE {name} (
    id bigserial PRIMARY KEY,
    code text NOT NULL UNIQUE,
    title text NOT NULL DEFAULT '',
    amount numeric(12, 2) NOT NULL DEFAULT 0 CHECK (amount >= 0),
    {reference}
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX {name}_created ON {name} (created_at);
COMMENT ON TABLE {name} IS 'table {number} of a generated set';
INSERT INTO {name} (code, title, amount{column}) SELECT 'c' || i, 'row ' || i, i{value} FROM generate_series(1, 20) i;
"""
ALTER = """\
ALTER TABLE {name} ADD COLUMN note text;
UPDATE {name} SET note = title WHERE id <= 10;
"""


class MigrationSet(NamedTuple):
    """So many files that make so many tables with keys, indexes and seed rows."""

    name: str
    files: int
    tables: int

    def sql(self) -> dict[str, str]:
        """Return file name -> SQL; tables are spread evenly, and every file changes a table of an earlier one."""
        texts = {}
        made = 0
        for number in range(1, self.files + 1):
            wanted = self.tables * number // self.files
            parts = [_table(table) for table in range(made, wanted)]
            if made:
                parts.append(ALTER.format(name=_name((number * 7) % made)) if not _is_altered(number, made, self) else "SELECT 1;\n")
            made = wanted
            texts[f"{number:04d}_step.sql"] = "".join(parts) or "SELECT 1;\n"
        return texts


def _is_altered(number: int, made: int, of: MigrationSet) -> bool:
    """Say whether an earlier file altered the table that file `number` would alter."""
    table = (number * 7) % made
    for earlier in range(2, number):
        before = of.tables * (earlier - 1) // of.files
        if before and (earlier * 7) % before == table:
            return True
    return False


def _name(number: int) -> str:
    return f"thing_{number:03d}"


def _table(number: int) -> str:
    if not number:
        return TABLE.format(name=_name(0), number=0, reference="-- the first one refers to none", column="", value="")
    other = _name(number // 2)
    reference = f"parent_id bigint REFERENCES {other} (id) ON DELETE CASCADE,"
    return TABLE.format(name=_name(number), number=number, reference=reference, column=", parent_id", value=", i")


SETS = (MigrationSet("small", 5, 10), MigrationSet("medium", 60, 80), MigrationSet("large", 300, 300))
