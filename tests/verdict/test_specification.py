"""The specification's own packages, one promise broken in a copy: a package that no longer takes back what it commits is named."""

from __future__ import annotations

import json
import shutil

from tests.builders import HARNESS_ROOT, SampleRepository

SETTINGS = """\
[databases]
application = "shop"
test = "shop_test"

[[migrations]]
stream = "platform"
directory = "migrations/platform"

[[migrations]]
stream = "billing"
directory = "migrations/billing"

[packages]
test = [{packages}]
"""
AREAS = ("orgs", "domains", "providers", "sign_in", "placements", "plans", "entitlements")
UNSET = "connection.execute(\"DELETE FROM billing.default_plan_ladders WHERE org_type = 'academy'\")"


def test_bisect_names_the_package_that_left_a_ladder(sample_repository: SampleRepository) -> None:
    """The entitlements assert an unset ladder, the plans no longer unset it: bisect names them, and the row."""
    repository = sample_repository
    shutil.rmtree(repository.root / "migrations")
    for path in ("migrations", "tests/mission_control"):
        shutil.copytree(HARNESS_ROOT / path, repository.root / path, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    names = [f"tests/mission_control/{area}" for area in AREAS]
    repository.settings(SETTINGS.format(packages=", ".join(map(json.dumps, names))))
    repository.write("pyproject.toml", '[tool.pytest.ini_options]\naddopts = ["--import-mode=importlib"]\npythonpath = ["."]\n')
    culprit = repository.root / "tests/mission_control/plans/test_committed_ladder.py"
    assert UNSET in culprit.read_text()
    culprit.write_text(culprit.read_text().replace(UNSET, "pass"))
    document = repository.root / "found.json"
    env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = repository.run("bisect", "--package", names[-1], "--json", str(document), env=env, timeout=300).expect(0)
    found = json.loads(document.read_text())
    assert (found["verdict"], found["polluters"]) == ("polluter", ["tests/mission_control/plans"])
    assert len(found["runs"]) <= 6
    assert "tests/mission_control/plans left: billing.default_plan_ladders 5 → 6 rows (1 written)" in done.stdout
    assert "  billing.default_plan_ladders: (academy,1," in done.stdout
