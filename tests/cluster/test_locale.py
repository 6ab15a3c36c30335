"""BOOT-07: the shell's locale decides nothing."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.cluster.place import Place

WORDS = ["a", "B", "b", "ä", "Ä", "z", "_a", "1", "é"]
IN_ORDER = ["1", "B", "_a", "a", "b", "z", "Ä", "ä", "é"]


@pytest.mark.parametrize(
    "shell",
    [
        {"LANG": None, "LC_ALL": None},
        {"LC_ALL": "C"},
        {"LC_ALL": "xx_YY.UTF-8"},
        {"LANG": "en_US.UTF-8"},
    ],
    ids=["unset", "C", "unknown", "not installed"],
)
def test_every_locale_makes_the_same_cluster(shell: Mapping[str, str | None], place: Place) -> None:
    """UTF-8 and one order everywhere, in the databases that the reset makes too."""
    place.bootstrap(env=shell).expect(0)
    for variable in ("MC_DB_DSN", "TEST_DATABASE_URL"):
        assert place.value("SHOW server_encoding", variable) == "UTF8"
        assert place.value(f"SELECT array_agg(w ORDER BY w) FROM unnest('{{{','.join(WORDS)}}}'::text[]) AS w", variable) == IN_ORDER
        assert place.value("SELECT upper('ä')", variable) == "Ä"
        assert place.value("SHOW timezone", variable) == "UTC"
