"""Rights and settings of a database: which statements restore them, and what a literal name adds. No server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.attributes import PLAIN, Attributes, Grant, merged, restoring, split_list


def with_settings(*settings: tuple[str, str, str]) -> Attributes:
    """Return plain attributes with settings (role, name, value)."""
    return PLAIN._replace(settings=tuple(((role, key), value) for role, key, value in settings))


def test_equal_attributes_need_no_statement() -> None:
    """A clone of a plain database is left as it is."""
    assert restoring("d", "o", now=PLAIN, wanted=PLAIN) == []


def test_rights_are_taken_from_everybody_and_given_one_by_one() -> None:
    """The owner's own, PUBLIC's, and those with the option to pass them on."""
    wanted = PLAIN._replace(grants=frozenset([Grant(None, "CONNECT", False), Grant('a"b', "CREATE", True)]))
    assert restoring("my db", "owner", now=PLAIN, wanted=wanted) == [
        'REVOKE ALL ON DATABASE "my db" FROM PUBLIC CASCADE',
        'REVOKE ALL ON DATABASE "my db" FROM "owner" CASCADE',
        'GRANT CREATE ON DATABASE "my db" TO "a""b" WITH GRANT OPTION',
        'GRANT CONNECT ON DATABASE "my db" TO "owner"',
    ]


@pytest.mark.parametrize(
    ("key", "value", "statement"),
    [
        ("work_mem", "5MB", "SET \"work_mem\" TO '5MB'"),
        ("my.setting", "it's", "SET \"my\".\"setting\" TO 'it''s'"),
        ("my.setting", "a\\b", 'SET "my"."setting" TO  E\'a\\\\b\''),
        ("search_path", '"$user", public, "a,b", "q""q"', "SET \"search_path\" TO '$user', 'public', 'a,b', 'q\"q'"),
        ("search_path", '""', "SET \"search_path\" TO ''"),
        ("search_path", "", "SET \"search_path\" TO ''"),
        ("DateStyle", "ISO, DMY", "SET \"DateStyle\" TO 'ISO, DMY'"),
    ],
)
def test_settings_are_quoted_as_postgresql_stores_them(key: str, value: str, statement: str) -> None:
    """List settings item by item, all others as one text."""
    wanted = with_settings(("", key, value), ("r", key, value))
    assert restoring("d", "o", now=PLAIN, wanted=wanted) == [
        f'ALTER DATABASE "d" {statement}',
        f'ALTER ROLE "r" IN DATABASE "d" {statement}',
    ]


def test_settings_that_are_not_wanted_are_reset_and_a_limit_is_set() -> None:
    """What is there already is not said again."""
    now = with_settings(("", "work_mem", "1MB"), ("", "geqo", "off"))._replace(connection_limit=3)
    wanted = with_settings(("", "geqo", "off"))
    assert restoring("d", "o", now=now, wanted=wanted) == ['ALTER DATABASE "d" RESET "work_mem"', 'ALTER DATABASE "d" CONNECTION LIMIT -1']


def test_what_happened_under_the_literal_name_is_added_and_taken() -> None:
    """Rights given and revoked, settings set and reset, the limit; the rest is the built database's own."""
    base = with_settings(("", "geqo", "off"), ("", "jit", "off"))
    built = with_settings(("", "geqo", "off"), ("", "jit", "off"), ("", "work_mem", "1MB"))
    literal = with_settings(("", "jit", "on"), ("r", "jit", "off"))._replace(
        grants=PLAIN.grants - {Grant("", "CONNECT", False)} | {Grant("r", "CREATE", False)}, connection_limit=7
    )
    found = merged(built, literal_name=literal, base=base)
    assert dict(found.settings) == {("", "jit"): "on", ("", "work_mem"): "1MB", ("r", "jit"): "off"}
    assert found.grants == literal.grants
    assert found.connection_limit == 7


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)))
def test_a_quoted_list_is_split_into_its_items(items: list[str]) -> None:
    """Whatever stands in them."""
    assert split_list(", ".join('"' + item.replace('"', '""') + '"' for item in items)) == items
