"""What a package left behind, as one line: every kind, in order, and no more than a person reads."""

from __future__ import annotations

import json

from harness.residue import (
    LONG,
    SHOWN,
    LeftLock,
    LeftSession,
    LeftTransaction,
    ObjectChange,
    Residue,
    SequenceMove,
    SettingChange,
    TableChange,
    is_outliving,
    object_changes,
    setting_changes,
    summary,
    unlike,
)
from harness.results import encode


def test_every_kind_has_its_words() -> None:
    """Tables, sequences, objects, settings, sessions, transactions and locks, each told so that it can be found."""
    parts = {
        Residue(tables=(TableChange("public.item", 3, 5, 2),)): "public.item 3 → 5 rows (2 written)",
        Residue(tables=(TableChange("secret.one", None, None, 4),)): (
            "secret.one (4 row(s) written, perhaps rolled back: it may not be read)"
        ),
        Residue(sequences=(SequenceMove("public.s", 1, 9, by_inserts=False),)): "sequence public.s moved 1 → 9",
        Residue(objects=(ObjectChange("role", "bob", "made", outlives=True),)): "role bob made (outlives a reset)",
        Residue(objects=(ObjectChange("view", "public.v", "dropped"),)): "view public.v dropped",
        Residue(settings=(SettingChange("work_mem of this database", None, "8MB"),)): "setting work_mem of this database: none → '8MB'",
        Residue(sessions=(LeftSession(7, "dev", "", "idle", 1.25),)): "session 7 of dev (unnamed, idle, 1.2 s old)",
        Residue(sessions=(LeftSession(7, "dev", "app", "active", 0.1),)): "session 7 of dev (app, active, 0.1 s old)",
        Residue(transactions=(LeftTransaction("left1", "dev"),)): "prepared transaction 'left1' of dev",
        Residue(locks=(LeftLock("42", 7), LeftLock("4, 2", 0))): "advisory lock 42 (pid 7); advisory lock 4, 2",
        Residue("it cannot be looked at: gone", unseen="gone"): "it cannot be looked at: gone",
        Residue(): "",
    }
    assert {residue: summary(residue) for residue in parts} == parts


def test_what_inserts_did_to_a_sequence_is_no_line() -> None:
    """Recorded, since a test may count on a first number; not told, since PostgreSQL takes no number back."""
    assert summary(Residue(sequences=(SequenceMove("public.s", 1, 2, by_inserts=True),))) == ""


def test_a_line_stays_a_line() -> None:
    """Many changes are counted after the first, and a long value is cut."""
    many = Residue(objects=tuple(ObjectChange("table", f"public.t{number}", "made") for number in range(SHOWN + 3)))
    assert summary(many).endswith(f"table public.t{SHOWN - 1} made; and 3 more")
    long = Residue(settings=(SettingChange("x of this database", "a" * LONG, "b" * (LONG + 1)),))
    assert summary(long) == f"setting x of this database: '{'a' * LONG}' → '{'b' * LONG}…'"


def test_differences_are_made_changed_or_dropped() -> None:
    """In both directions, by kind and name; a setting says whether it goes with its database."""
    before: dict[tuple[str, str], object] = {("table", "a"): 1, ("table", "b"): 1, ("view", "b"): 1}
    after: dict[tuple[str, str], object] = {("table", "a"): 1, ("table", "b"): 2, ("table", "c"): 1}
    assert object_changes(before, after) == [
        ObjectChange("table", "b", "changed"),
        ObjectChange("view", "b", "dropped"),
        ObjectChange("table", "c", "made"),
    ]
    assert setting_changes({"x of this database": "1", "y everywhere": "1"}, {"x of this database": "2"}) == [
        SettingChange("x of this database", "1", "2", outlives=False),
        SettingChange("y everywhere", "1", None, outlives=True),
    ]
    assert unlike(before, before) == []
    assert is_outliving("work_mem of role dev everywhere")


def test_a_residue_is_plain_data_in_the_document() -> None:
    """The summary first, then every kind by its name."""
    found = json.loads(json.dumps(encode(Residue("a line", tables=(TableChange("public.item", 0, 1, 1, ("(1)",)),)))))
    assert list(found) == ["summary", "tables", "sequences", "objects", "settings", "sessions", "locks", "transactions", "unseen"]
    assert found["tables"] == [{"name": "public.item", "before": 0, "after": 1, "written": 1, "rows": ["(1)"]}]
