"""Programs as users: a whole cycle by exit codes and documents, without a look at what is printed for people."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.adoption.adopter import Adopter

SETTINGS = """
[databases]
application = "shop"
test = "shop_test"

[[migrations]]
stream = "core"
directory = "migrations"

[packages]
test = ["tests/billing", "tests/imports", "tests/orders"]

[stack]
ports = [18950, 18999]
"""
QUIET = "def test_{name}(test_connection):\n    assert test_connection.execute('SELECT count(*) FROM item').fetchone() == (0,)\n"
POLLUTER = """
import psycopg

def test_imports(test_database_url):
    with psycopg.connect(test_database_url) as connection:
        connection.execute("INSERT INTO item VALUES (1)")
        {cure}
"""


class Program:
    """Another program: it types `harness … --json FILE` and reads exit code and document."""

    def __init__(self, adopter: Adopter) -> None:
        self.adopter = adopter

    def call(self, *arguments: str, code: int) -> dict[str, Any]:
        """Run a task; the document's exit and error say what the exit code says."""
        path = self.adopter.root.parent / "document.json"
        path.unlink(missing_ok=True)
        done = self.adopter.harness(*arguments, "--json", str(path))
        assert done.returncode == code, done
        document: dict[str, Any] = json.loads(path.read_text())
        assert (document["format"], document["exit"]) == (1, code)
        return document

    def statuses(self, document: dict[str, Any]) -> dict[str, str]:
        """Return each package's status."""
        return {package["package"]: package["status"] for package in document["packages"]}


@pytest.fixture
def program(adopter: Adopter) -> Program:
    """Return a program in a shop whose imports spoil its orders."""
    adopter.write("harness.toml", SETTINGS)
    adopter.write("migrations/0001_item.sql", "CREATE TABLE item(id int PRIMARY KEY);\n")
    adopter.write("tests/billing/test_billing.py", QUIET.format(name="billing"))
    adopter.write("tests/imports/test_imports.py", POLLUTER.format(cure=""))
    adopter.write("tests/orders/test_orders.py", QUIET.format(name="orders"))
    return Program(adopter)


def test_a_whole_cycle(program: Program) -> None:
    """Up, reset, a failing run, the culprit, its mending, green: every step is decided by the one before."""
    error = program.call("status", code=5)["error"]
    assert error is None or {"code", "message", "next"} <= set(error)
    assert program.call("test", code=2)["error"]["code"] == 2  # no test/.env yet
    up = program.call("stack-up", code=0)["cluster"]
    status = program.call("status", code=0)
    assert (status["cluster"]["port"], status["cluster"]["state"]) == (up["port"], "up")
    (database,) = program.call("reset", code=0)["databases"]
    assert (database["name"], database["migrations"]) == ("shop_test", 1)

    failing = program.call("test", code=1)
    assert program.statuses(failing) == {"tests/billing": "passed", "tests/imports": "passed", "tests/orders": "failed"}
    (victim,) = [package["package"] for package in failing["packages"] if package["status"] == "failed"]
    (test,) = [test for package in failing["packages"] for test in package["tests"] if test["outcome"] == "failed"]
    assert test["id"].startswith(f"{victim}::")
    assert test["reason"]

    found = program.call("bisect", "--package", victim, code=0)
    assert (found["verdict"], found["polluters"]) == ("polluter", ["tests/imports"])
    arguments = shlex.split(found["command"])
    assert Path(arguments[0]).name in ("inv", "harness")
    again = program.call(*arguments[1:], code=1)
    assert program.statuses(again) == {"tests/imports": "passed", "tests/orders": "failed"}

    program.adopter.write("tests/imports/test_imports.py", POLLUTER.format(cure="connection.rollback()"))
    green = program.call("test", code=0)
    assert set(program.statuses(green).values()) == {"passed"}
    assert green["pristine"] is True
    assert green["totals"]["passed"] == 3
    assert program.call("verify", code=0)["differences"] == []
    assert all(check["ok"] for check in program.call("doctor", code=0)["checks"])
    assert program.call("stack-down", code=0)["stopped"] is True


def test_the_document_alone_is_on_stdout(program: Program) -> None:
    """With `--json -` a program may parse stdout whole, in failure too."""
    for arguments, code in ((("status",), 5), (("test",), 2), (("init",), 0)):
        done = program.adopter.harness(*arguments, "--json", "-").expect(code)
        assert json.loads(done.stdout)["exit"] == code


NODE = """
const {{ execFileSync }} = require("node:child_process");
const url = new URL(process.env.TEST_DATABASE_URL);
if (url.pathname !== "/shop_test") throw new Error(`wrong database ${{url.pathname}}`);
if (!process.env.MC_DB_DSN.includes(".invalid")) throw new Error("the application's database is in reach");
const rows = execFileSync({python}, ["-c", {query}], {{ env: process.env }}).toString().trim();
if (rows !== "0") throw new Error(`${{rows}} rows`);
require("node:fs").writeFileSync("junit.xml", '<testsuite tests="1"><testcase classname="web" name="is empty"/></testsuite>');
"""
QUERY = "import os, psycopg; print(psycopg.connect(os.environ['TEST_DATABASE_URL']).execute('SELECT count(*) FROM item').fetchone()[0])"
SHELL = """#!/bin/sh
set -eu
echo "$TEST_DATABASE_URL" | grep -q /shop_test
test -z "${E2E_DATABASE_URL:-}"
test "$(%s -c "$QUERY")" = 0
"""
GO = """
package shop

import (
\t"os"
\t"strings"
\t"testing"
)

func TestDatabase(t *testing.T) {
\tif !strings.Contains(os.Getenv("TEST_DATABASE_URL"), "/shop_test") {
\t\tt.Fatal("another database")
\t}
}
"""


@pytest.mark.parametrize("language", ["node", "sh", "go"])
def test_any_language(language: str, adopter: Adopter) -> None:
    """A package is a folder and a command: it finds its own database, never the application's, and its exit code counts."""
    if adopter.run("/bin/sh", "-c", f"command -v {language}").returncode:
        pytest.skip(f"{language} is not on this machine")
    python = sys.executable
    commands = {"node": ["node", "check.js"], "sh": ["sh", "check.sh"], "go": ["go", "test", "./..."]}
    junit = ', junit = "junit.xml"' if language == "node" else ""
    entry = f'{{ path = "web", command = {json.dumps(commands[language])}{junit} }}'
    adopter.write(
        "harness.toml",
        SETTINGS.replace('"tests/billing", "tests/imports", "tests/orders"', entry) + f"\n[environment]\nQUERY = {json.dumps(QUERY)}\n",
    )
    adopter.write("migrations/0001_item.sql", "CREATE TABLE item(id int PRIMARY KEY);\n")
    adopter.write("web/check.js", NODE.format(python=json.dumps(python), query=json.dumps(QUERY)))
    adopter.write("web/check.sh", SHELL % shlex.quote(python))
    adopter.write("web/go.mod", "module shop\n\ngo 1.20\n")
    adopter.write("web/shop_test.go", GO)
    program = Program(adopter)
    program.call("stack-up", code=0)
    document = program.call("test", code=0)
    assert program.statuses(document) == {"web": "passed"}
    if language == "node":
        assert [test["id"] for test in document["packages"][0]["tests"]] == ["web::web::is empty"]
    adopter.write("migrations/0002_row.sql", "INSERT INTO item VALUES (1);\n")
    adopter.write("web/shop_test.go", GO.replace("/shop_test", "/another"))
    assert program.statuses(program.call("test", code=1)) == {"web": "failed"}
