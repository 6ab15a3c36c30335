"""Which files of a stream's folder count, and in which order."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import folders
from harness.errors import UsageError


def fill(folder: Path, *names: str, content: bytes = b"SELECT 1;") -> Path:
    """Write files; a name that ends in a slash is a folder."""
    for name in names:
        if name.endswith("/"):
            (folder / name).mkdir(parents=True)
        else:
            (folder / name).write_bytes(content)
    return folder


def names(folder: Path) -> list[str]:
    """Return the folder's files in order."""
    return [file.name for file in folders.read("core", folder).files]


@pytest.mark.parametrize(
    "ordered",
    [
        pytest.param(["9999_a.sql", "10000_b.sql"], id="digits grow"),
        pytest.param(["9_a.sql", "10_b.sql"], id="no zeros"),
        pytest.param(["0001_a.sql", "0003_b.sql"], id="a gap"),
        pytest.param(["1.sql", "2-b.sql", "3.c.sql", "04 d.sql"], id="any separator"),
        pytest.param(["0001_a.up.sql", "0002_b.up.sql"], id="golang-migrate"),
        pytest.param(["20240101120000_a.sql", "20240301120000_b.sql"], id="dbmate"),
        pytest.param(["V1__a.sql", "V1.1__b.sql", "V2_0_1__c.sql", "V10__d.sql"], id="Flyway"),
        pytest.param(["0001_A.SQL", "0002_b.Sql"], id="capitals"),
        pytest.param(["0001_ä.sql", "0002_日本.sql"], id="beyond ASCII"),
    ],
)
def test_the_order_is_numeric(tmp_path: Path, ordered: list[str]) -> None:
    """Files come by number, whatever a string sort says."""
    fill(tmp_path, *random.Random(7).sample(ordered, len(ordered)))
    assert ordered == names(tmp_path)


@given(st.lists(st.integers(0, 10**15), unique=True, max_size=20), st.randoms(use_true_random=False))
def test_the_order_is_that_of_the_numbers(tmp_path_factory: pytest.TempPathFactory, numbers: list[int], chance: random.Random) -> None:
    """However many zeros are in front, position follows number."""
    folder = tmp_path_factory.mktemp("order")
    fill(folder, *(f"{'0' * chance.randint(0, 3)}{number}_x.sql" for number in numbers))
    found = folders.read("core", folder).files
    assert sorted(numbers) == [int(file.name.partition("_")[0]) for file in found]
    assert list(range(1, len(numbers) + 1)) == [file.position for file in found]


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        pytest.param(["0003_x.sql", "0003_y.sql"], ["0003_x.sql and 0003_y.sql"], id="a number twice"),
        pytest.param(["3_x.sql", "0003_y.sql"], ["0003_y.sql and 3_x.sql"], id="a number twice, written differently"),
        pytest.param(["0003_x.up.sql", "0003_x.sql"], ["0003_x.sql and 0003_x.up.sql"], id="up and plain"),
        pytest.param(["V1__a.sql", "V1.0__b.sql"], ["V1.0__b.sql and V1__a.sql"], id="a version twice"),
        pytest.param(["0001_a.sql", "notes.sql"], ["notes.sql has no number"], id="no number"),
        pytest.param(["R__views.sql"], ["R__views.sql has no number"], id="Flyway's repeatable"),
        pytest.param(["0001_a.sql", "0006_x.sql/"], ["0006_x.sql is a folder"], id="a folder named like a file"),
        pytest.param(["0001_a.sql", "old/"], ["old is a folder"], id="a folder"),
        pytest.param(["²_a.sql"], ["²_a.sql has no number"], id="a digit that is none"),
    ],
)
def test_what_is_refused(tmp_path: Path, entries: list[str], said: list[str]) -> None:
    """A doubtful order is refused with every name that makes it doubtful."""
    with pytest.raises(UsageError) as caught:
        folders.read("core", fill(tmp_path, *entries))
    assert all(phrase in caught.value.message for phrase in ["stream 'core'", *said])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("0004_x.sql.orig", "leftover"),
        (".0005_x.sql.swp", "leftover"),
        (".#0005_x.sql", "leftover"),
        ("#0005_x.sql#", "leftover"),
        ("0005_x.sql~", "leftover"),
        ("._0005_x.sql", "leftover"),
        ("0001_a.down.sql", "leads down"),
        ("U1__a.sql", "leads down"),
        ("0003_backfill.py", "does not end in .sql"),
    ],
)
def test_what_is_skipped_aloud(tmp_path: Path, name: str, why: str) -> None:
    """Leftovers and ways down are no migrations, and a notice says so."""
    found = folders.read("core", fill(tmp_path, "0001_a.sql", name))
    assert [file.name for file in found.files] == ["0001_a.sql"]
    (notice,) = found.notices
    assert name in notice
    assert why in notice


def test_what_is_passed_over(tmp_path: Path) -> None:
    """A read-me, hidden files and bytecode are nobody's migrations."""
    found = folders.read("core", fill(tmp_path, "0001_a.sql", "README.md", ".gitkeep", ".idea/", "__pycache__/", "atlas.sum"))
    assert (len(found.files), found.notices) == (1, ())


def test_an_empty_folder_is_said_aloud(tmp_path: Path) -> None:
    """A stream may begin without a file, but not unnoticed."""
    assert ((), (f"stream 'core': {tmp_path} has no migration files",)) == folders.read("core", tmp_path)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    """A misspelt folder is no empty stream."""
    with pytest.raises(UsageError, match="No such file"):
        folders.read("core", tmp_path / "migratoins")


def test_a_link_to_nowhere_is_refused(tmp_path: Path) -> None:
    """A file that cannot be read stops the plan."""
    (tmp_path / "0001_a.sql").symlink_to("nowhere")
    with pytest.raises(UsageError, match=r"0001_a\.sql cannot be read"):
        folders.read("core", tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param("SELECT 'é'".encode("latin-1"), "byte 8: 0xe9", id="latin-1"),
        pytest.param("SELECT 1".encode("utf-16"), "byte 0: 0xff", id="utf-16 with a mark"),
        pytest.param("SELECT 1".encode("utf-16-le"), "byte 1", id="utf-16 without one"),
        pytest.param(b"SELECT 1;\0DROP TABLE a", "byte 9", id="a zero byte, at which libpq would stop"),
    ],
)
def test_other_encodings_are_refused_with_the_offset(tmp_path: Path, content: bytes, said: str) -> None:
    """Only UTF-8 is taken."""
    with pytest.raises(UsageError) as caught:
        folders.read("core", fill(tmp_path, "0001_a.sql", content=content))
    assert said in caught.value.message
    assert caught.value.next == "Save it as UTF-8."


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    """The mark is dropped from the text, the hash is of the bytes on disk, CRLF stays."""
    content = b"\xef\xbb\xbfSELECT 1;\r\n"
    (file,) = folders.read("core", fill(tmp_path, "0001_a.sql", content=content)).files
    assert ("SELECT 1;\r\n", hashlib.sha256(content).hexdigest(), 1) == (file.text, file.sha256, file.position)
