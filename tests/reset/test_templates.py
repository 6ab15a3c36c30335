"""The template cache: named by everything it depends on, sealed, published whole, pruned; and a warm reset equals a cold one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from harness import obstacles, reset, templates
from harness.errors import ResetFailed
from tests.builders import SampleRepository, ScratchCluster, assert_fresh, literal
from tests.reset import inside as within
from tests.reset.inside import Inside, leftovers, state

EXCLUSIVE = "SELECT datname FROM pg_database WHERE datname LIKE 'harness\\_tpl\\_%'"


def sources(repository: SampleRepository, *arguments: str, env: dict[str, str | None] | None = None) -> list[str]:
    """Reset by the command and return where each database came from."""
    done = repository.run("reset", "--json", "-", *arguments, env=env).expect(0)
    return [database["source"] for database in json.loads(done.stdout)["databases"]]


def of(repository: SampleRepository) -> list[str]:
    """Reset here and return where each database came from."""
    return [one.source for one in Inside(repository).reset()]


def test_the_second_reset_clones_and_fresh_and_ci_bypass_the_template(sample_repository: SampleRepository) -> None:
    """A bypass neither uses a template nor keeps one."""
    assert sources(sample_repository, "--fresh") == ["migrated", "migrated"]
    assert within.templates(sample_repository) == []
    assert sources(sample_repository) == ["migrated", "migrated"]
    assert sources(sample_repository) == ["template", "template"]
    kept = within.templates(sample_repository)
    assert len(kept) == 2
    assert sources(sample_repository, "--fresh") == ["migrated", "migrated"]
    assert sources(sample_repository, env={"CI": "true"}) == ["migrated", "migrated"]
    assert sources(sample_repository, env={"CI": "false"}) == ["template", "template"]
    assert within.templates(sample_repository) == kept


def test_the_document_tells_phases_and_lines_tell_the_source(sample_repository: SampleRepository) -> None:
    """One line per database, and where the time went."""
    done = sample_repository.run("reset", "--json", "-").expect(0)
    document = json.loads(done.stdout)
    assert (document["format"], document["command"], document["exit"], document["error"]) == (1, "reset", 0, None)
    for database, (name, role) in zip(document["databases"], [("shop_test", "test"), ("shop_e2e", "e2e")], strict=True):
        assert (database["name"], database["role"], database["source"], database["migrations"]) == (name, role, "migrated", 1)
        assert database["ended"] == []
        assert list(database["phases"]) == ["checks", "build", "swap", "drop"]
        assert sum(database["phases"].values()) == pytest.approx(database["ms"], abs=20)
    lines = sample_repository.run("reset").expect(0).stdout.splitlines()
    assert [re.sub(r"\d+ ms", "N ms", line) for line in lines] == [
        "test database 'shop_test' is pristine: cloned from its template, N ms",
        "e2e database 'shop_e2e' is pristine: cloned from its template, N ms",
    ]


CHANGES = {
    "content": lambda repository: repository.migration("0001_base.sql", "CREATE TABLE item(id bigint PRIMARY KEY);\n"),
    "a space": lambda repository: repository.migration("0001_base.sql", "CREATE TABLE item(id int PRIMARY KEY);\n\n"),
    "name": lambda repository: repository.root.joinpath("migrations/core/0001_base.sql").rename(
        repository.root / "migrations/core/0001_other.sql"
    ),
    "one more": lambda repository: repository.migration("0002_more.sql", "SELECT 1;\n"),
    "stream's name": lambda repository: repository.settings(
        repository.root.joinpath("harness.toml").read_text().replace('stream = "core"', 'stream = "kern"')
    ),
    "as": lambda repository: repository.settings(
        repository.root.joinpath("harness.toml").read_text().replace('core"\n\n', 'core"\nas = "maintenance"\n\n')
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_of_an_input_makes_another_template(reset_once: SampleRepository, change: str) -> None:
    """The old one stays for the way back."""
    before = within.templates(reset_once)
    CHANGES[change](reset_once)
    assert of(reset_once) == ["migrated", "migrated"]
    assert len(within.templates(reset_once)) == 4
    assert set(before) < set(within.templates(reset_once))
    assert of(reset_once) == ["template", "template"]


def test_order_of_streams_and_the_runners_own_code_are_inputs(
    reset_once: SampleRepository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A warm template must not hide a change in what would build it."""
    streams = '[[migrations]]\nstream = "{}"\ndirectory = "migrations/{}"\n\n'
    text = reset_once.root.joinpath("harness.toml").read_text()
    core, other = streams.format("core", "core"), streams.format("other", "other")
    reset_once.migration("0001_x.sql", "CREATE TABLE other();", stream="other")
    for written in (core + other, other + core):
        reset_once.settings(text.replace(core, written))
        assert of(reset_once) == ["migrated", "migrated"]
    for name in templates.BUILDERS:
        source = Path(templates.__file__).with_name(f"{name}.py")
        tmp_path.joinpath(source.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(templates, "__file__", str(tmp_path / "templates.py"))
    assert of(reset_once) == ["template", "template"]
    tmp_path.joinpath("sql.py").write_text("changed")
    assert of(reset_once) == ["migrated", "migrated"]


def test_the_context_tells_role_names_server_and_locale(reset_once: SampleRepository) -> None:
    """Every part of it changes the fingerprint."""
    with Inside(reset_once).opened() as run:
        server, target, dsn = run.proof.server, run.targets[0], run.env.dsn("maintenance")
    base = templates.context(server, target, dsn, worktree="/w", own_cluster=False)
    others = [
        templates.context(server._replace(version=server.version + 1), target, dsn, worktree="/w", own_cluster=False),
        templates.context(server._replace(locale="de_DE"), target, dsn, worktree="/w", own_cluster=False),
        templates.context(server, target._replace(role="e2e"), dsn, worktree="/w", own_cluster=False),
        templates.context(server, target._replace(dsn=target.dsn._replace(user="x")), dsn, worktree="/w", own_cluster=False),
        templates.context(server, target._replace(dsn=target.dsn.at("x")), dsn, worktree="/w", own_cluster=False),
        templates.context(server, target, dsn._replace(user="x"), worktree="/w", own_cluster=False),
        templates.context(server, target, dsn, worktree="/x", own_cluster=False),
        templates.context(server, target, dsn, worktree="/w", own_cluster=True),
    ]
    assert all(other != base for other in others)


def test_three_fingerprints_are_kept_and_switching_between_them_is_instant(reset_once: SampleRepository) -> None:
    """The one used last stays, whenever it was made."""
    texts = [f"CREATE TABLE item(id int PRIMARY KEY); -- {number}\n" for number in range(4)]
    for text in texts[:2]:
        reset_once.migration("0001_base.sql", text)
        assert of(reset_once) == ["migrated", "migrated"]
    assert len(within.templates(reset_once)) == 6
    for text in (texts[0], texts[1], texts[0]):
        reset_once.migration("0001_base.sql", text)
        assert of(reset_once) == ["template", "template"]
    for text in texts[2:]:
        reset_once.migration("0001_base.sql", text)
        assert of(reset_once) == ["migrated", "migrated"]
        assert len(within.templates(reset_once)) == 6
    reset_once.migration("0001_base.sql", texts[0])
    assert of(reset_once) == ["template", "template"], "used after the second, so kept before it"
    reset_once.migration("0001_base.sql", texts[1])
    assert of(reset_once) == ["migrated", "migrated"]


def test_a_template_is_sealed_and_belongs_to_the_maintenance_role(reset_once: SampleRepository, scratch_cluster: ScratchCluster) -> None:
    """A test role can neither enter, open, rename, drop nor re-label it; what is inside is its own."""
    import psycopg

    scratch_cluster.create_role("other", "LOGIN SUPERUSER")
    reset_once.env_file({"MAINTENANCE_DATABASE_URL": scratch_cluster.dsn("other")})
    assert of(reset_once) == ["migrated", "migrated"]
    ours = [name for name, row in state(reset_once).items() if name.startswith("harness_tpl_") and row[1] == "other"]
    assert len(ours) == 2
    for name in ours:
        with pytest.raises(psycopg.OperationalError, match="not currently accepting connections"):
            scratch_cluster.connect("su", name)
        for statement in (
            f"ALTER DATABASE {name} ALLOW_CONNECTIONS true",
            f"ALTER DATABASE {name} RENAME TO mine",
            f"COMMENT ON DATABASE {name} IS 'mine'",
            f"DROP DATABASE {name}",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                scratch_cluster.execute(statement, role="dev", database="shop_test")
    assert_fresh(scratch_cluster, "shop_test")
    assert scratch_cluster.value("SELECT tableowner FROM pg_tables WHERE tablename = 'item'", database="shop_test") == "dev"


DAMAGE = {
    "opened": "ALTER DATABASE {} ALLOW_CONNECTIONS true",
    "stamp gone": "COMMENT ON DATABASE {} IS NULL",
    "stamp of another fingerprint": "COMMENT ON DATABASE {} IS {}",
    "of another owner": "ALTER DATABASE {} OWNER TO su",
    "invalid": "UPDATE pg_database SET datconnlimit = -2 WHERE datname = '{}'",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_template_that_is_not_whole_and_sealed_is_made_anew(
    reset_once: SampleRepository, scratch_cluster: ScratchCluster, damage: str
) -> None:
    """Never cloned, never trusted again."""
    reset_once.env_file(
        {
            "MAINTENANCE_DATABASE_URL": scratch_cluster.dsn("other")
            if damage == "of another owner"
            else reset_once.dsn("MAINTENANCE_DATABASE_URL")
        }
    )
    if damage == "of another owner":
        scratch_cluster.create_role("other", "LOGIN SUPERUSER")
        reset_once.env_file({"MAINTENANCE_DATABASE_URL": scratch_cluster.dsn("other")})
        Inside(reset_once).reset()
    rows = scratch_cluster.execute("SELECT datname::text, oid::int8, shobj_description(oid, 'pg_database') FROM pg_database")
    newest = {json.loads(comment)["role"]: (name, oid, comment) for name, oid, comment in sorted(rows) if name.startswith("harness_tpl_")}
    if damage == "of another owner":
        owned = [name for name, row in state(reset_once).items() if row[1] == "other"]
        newest = {json.loads(comment)["role"]: (name, oid, comment) for name, oid, comment in rows if name in owned}
    name, oid, comment = newest["test"]
    fingerprint = json.loads(comment)["fingerprint"]
    scratch_cluster.execute(DAMAGE[damage].format(name, literal(comment.replace(fingerprint, "0" * 64))))
    assert of(reset_once) == ["migrated", "template"]
    assert scratch_cluster.oid(name) not in (None, oid)
    assert of(reset_once) == ["template", "template"]


def test_a_template_that_cannot_be_cloned_is_made_anew_with_a_line(reset_once: SampleRepository, scratch_cluster: ScratchCluster) -> None:
    """Such as one of another collation version than the system's, or a damaged one: only the attempt tells."""
    rows = scratch_cluster.execute(
        "SELECT oid::int8, shobj_description(oid, 'pg_database') FROM pg_database WHERE datname LIKE 'harness_tpl_%'"
    )
    oid = next(oid for oid, comment in rows if json.loads(comment)["role"] == "e2e")
    (scratch_cluster.data / "base" / str(oid) / "pg_filenode.map").chmod(0)
    inside = Inside(reset_once)
    assert [one.source for one in inside.reset()] == ["template", "migrated"]
    assert len(inside) == 1
    assert re.fullmatch(r"template 'harness_tpl_[0-9a-f]{16}' cannot be cloned \(.*\); migrating instead", inside[0])
    assert of(reset_once) == ["template", "template"]


def test_a_half_built_template_is_never_under_a_templates_name(
    reset_once: SampleRepository, scratch_cluster: ScratchCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is built under a private name, and one statement seals, stamps and publishes it."""
    seen: list[list[str]] = []
    persistently = obstacles.persistently

    def watched(*given: Any, **named: Any) -> None:
        seen.append(within.templates(reset_once))
        persistently(*given, **named)

    before = within.templates(reset_once)
    reset_once.migration("0002_more.sql", "CREATE TABLE more();")
    monkeypatch.setattr(obstacles, "persistently", watched)
    Inside(reset_once).reset()
    assert set(before) == set(seen[0])
    rows = scratch_cluster.execute(
        "SELECT datallowconn, datistemplate, shobj_description(oid, 'pg_database') FROM pg_database WHERE datname LIKE 'harness_tpl_%'"
    )
    assert [(row[0], row[1]) for row in rows] == [(False, False)] * 4
    assert all(len(json.loads(row[2])["fingerprint"]) == 64 for row in rows)


NASTY = r"""
CREATE EXTENSION IF NOT EXISTS pg_trgm;
CREATE SCHEMA "Odd Schema" AUTHORIZATION dev;
CREATE TYPE mood AS ENUM ('good', 'it''s "bad"');
CREATE TABLE "Odd Schema"."Größe %s" (id serial PRIMARY KEY, m mood DEFAULT 'good', "a""b" text, j jsonb, big oid);
INSERT INTO "Odd Schema"."Größe %s" ("a""b", j) SELECT 'x' || i, jsonb_build_object('i', i) FROM generate_series(1, 50) i;
SELECT nextval('"Odd Schema"."Größe %s_id_seq"'), setval('"Odd Schema"."Größe %s_id_seq"', 1234, false);
CREATE TABLE parted (id int, v text) PARTITION BY RANGE (id);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (100);
INSERT INTO parted SELECT i, md5(i::text) FROM generate_series(0, 99) i;
CREATE MATERIALIZED VIEW seen AS SELECT count(*) FROM parted;
CREATE UNLOGGED TABLE quick AS SELECT generate_series(1, 10) i;
COMMENT ON TABLE parted IS 'it''s \a comment';
COMMENT ON SCHEMA public IS 'ours';
CREATE FUNCTION twice(int) RETURNS int LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog AS 'SELECT $1 * 2';
GRANT EXECUTE ON FUNCTION twice TO other; REVOKE ALL ON FUNCTION twice FROM PUBLIC;
ALTER DEFAULT PRIVILEGES FOR ROLE dev IN SCHEMA public GRANT SELECT ON TABLES TO other;
ALTER DEFAULT PRIVILEGES FOR ROLE dev REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
GRANT USAGE ON SCHEMA "Odd Schema" TO other WITH GRANT OPTION;
SELECT lo_from_bytea(4711, '\x00ff10'); GRANT SELECT ON LARGE OBJECT 4711 TO other; COMMENT ON LARGE OBJECT 4711 IS 'large';
CREATE PUBLICATION pub FOR TABLE parted_1;
CREATE FUNCTION note() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN NULL; END';
CREATE EVENT TRIGGER noted ON ddl_command_end EXECUTE FUNCTION note();
ALTER TABLE "Odd Schema"."Größe %s" ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON "Odd Schema"."Größe %s" FOR SELECT TO other USING (id > 3);
CREATE SERVER elsewhere FOREIGN DATA WRAPPER nothing;
DO $do$ BEGIN
  EXECUTE format('ALTER DATABASE %I SET search_path TO "$user", public, "Odd Schema", ''a,b''', current_database());
  EXECUTE format('ALTER DATABASE %I SET work_mem TO ''5MB''', current_database());
  EXECUTE format('ALTER DATABASE %I SET my.setting TO ''it''''s \ "odd"''', current_database());
  EXECUTE format('ALTER DATABASE %I SET DateStyle TO ''ISO, DMY''', current_database());
  EXECUTE format('ALTER ROLE other IN DATABASE %I SET statement_timeout TO ''7s''', current_database());
  EXECUTE format('ALTER ROLE other IN DATABASE %I SET search_path TO ''''', current_database());
  EXECUTE format('GRANT CREATE, TEMPORARY ON DATABASE %I TO other WITH GRANT OPTION', current_database());
  EXECUTE format('REVOKE CONNECT ON DATABASE %I FROM PUBLIC', current_database());
  EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT 77', current_database());
END $do$;
"""
LITERAL = r"""
ALTER DATABASE shop_test SET work_mem TO '6MB';
alter database "shop_e2e" set "my.other" to 'x';
ALTER ROLE other IN DATABASE shop_test SET lock_timeout TO '9s';
GRANT CONNECT ON DATABASE SHOP_TEST TO other; REVOKE TEMPORARY ON DATABASE shop_test FROM PUBLIC;
COMMENT ON DATABASE shop_test IS 'written by a migration';
ALTER DATABASE shop_test CONNECTION LIMIT 66;
"""


def contents(cluster: ScratchCluster, name: str) -> dict[str, Any]:
    """Return everything that pg_dump and the catalogues tell of a database."""
    program = cluster.binaries / "pg_dump"
    dump = cluster.command(str(program), "-d", cluster.dsn("su", name), "--create", env={"PGTZ": "UTC"})
    parts = re.split(r"((?:^ALTER \w+.* SET .*\n)+)", dump, flags=re.MULTILINE)
    dump = "".join("".join(sorted(part.splitlines(keepends=True))) if part.startswith("ALTER ") else part for part in parts)
    dump = "\n".join(
        line for line in dump.splitlines() if not line.startswith(("\\restrict", "\\unrestrict")) and '"pgharness": 1' not in line
    )
    rows = cluster.execute(
        f"""SELECT 'owner', pg_get_userbyid(datdba)::text, datconnlimit, datallowconn, datistemplate, pg_encoding_to_char(encoding)::text, datcollate, datctype
            FROM pg_database WHERE datname = {literal(name)}"""
    )
    rights = cluster.execute(
        f"""SELECT pg_get_userbyid(a.grantor)::text, CASE a.grantee WHEN 0 THEN '' ELSE pg_get_userbyid(a.grantee)::text END, privilege_type, is_grantable
            FROM pg_database, aclexplode(coalesce(datacl, acldefault('d', datdba))) a WHERE datname = {literal(name)} ORDER BY 1, 2, 3"""
    )
    settings = cluster.execute(
        f"""SELECT CASE setrole WHEN 0 THEN '' ELSE pg_get_userbyid(setrole)::text END, ARRAY(SELECT unnest(setconfig) ORDER BY 1)
            FROM pg_db_role_setting WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = {literal(name)}) ORDER BY 1"""
    )
    dump = re.sub(r"(\tcore\t\d+\t\S+\t\w+\t)[^\t\n]*|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+\+\d\d", r"\1now", dump)
    return {"dump": dump.replace(name, "NAME"), "rows": rows, "rights": rights, "settings": settings}


@pytest.fixture
def nasty(sample_repository: SampleRepository, scratch_cluster: ScratchCluster) -> SampleRepository:
    """Return a repository whose migrations do everything that a clone could lose, run by a superuser in part."""
    scratch_cluster.create_role("other")
    text = sample_repository.root.joinpath("harness.toml").read_text()
    streams = '[[migrations]]\nstream = "{0}"\ndirectory = "migrations/{0}"\nas = "maintenance"\n\n'
    sample_repository.settings(text.replace("[packages]", streams.format("nasty") + streams.format("literal") + "[packages]"))
    sql = NASTY.replace("CREATE SERVER elsewhere", "CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER elsewhere")
    sample_repository.migration("0001_nasty.sql", sql, stream="nasty")
    sample_repository.migration("0001_literal.sql", LITERAL, stream="literal")
    sample_repository.env_file({"MAINTENANCE_DATABASE_URL": scratch_cluster.dsn()})
    return sample_repository


def test_a_warm_reset_equals_a_cold_one(nasty: SampleRepository, scratch_cluster: ScratchCluster) -> None:
    """Dump, rows, sequences, settings, rights, owners, comments, limits: cold, template just built, and cloned, for both databases."""
    inside, found = Inside(nasty), []
    for fresh, source in ((True, "migrated"), (False, "migrated"), (False, "template"), (True, "migrated"), (False, "template")):
        assert [one.source for one in inside.reset(fresh=fresh)] == [source, source]
        found.append({name: contents(scratch_cluster, name) for name in ("shop_test", "shop_e2e")})
        assert leftovers(nasty) == []
    for other in found[1:]:
        assert other == found[0]
    test, e2e = found[0]["shop_test"], found[0]["shop_e2e"]
    assert dict(test["settings"])[""] == [
        "DateStyle=ISO, DMY",
        'my.setting=it\'s \\ "odd"',
        'search_path="$user", public, "Odd Schema", "a,b"',
        "work_mem=6MB",
    ]
    assert "my.other=x" in dict(e2e["settings"])[""]
    assert dict(test["settings"])["other"] == ["lock_timeout=9s", 'search_path=""', "statement_timeout=7s"]
    assert [right[1:3] for right in test["rights"] if right[1] in ("", "other")] == [
        ("other", "CONNECT"),
        ("other", "CREATE"),
        ("other", "TEMPORARY"),
    ]
    assert (test["rows"][0][2], e2e["rows"][0][2]) == (66, 77)


def test_what_happens_under_the_literal_name_happens_to_the_new_database_only(
    nasty: SampleRepository, scratch_cluster: ScratchCluster
) -> None:
    """The previous database has its rights, settings and stamp again when a later migration fails."""
    inside = Inside(nasty)
    inside.reset()
    scratch_cluster.execute("ALTER DATABASE shop_test SET geqo TO off; REVOKE ALL ON DATABASE shop_test FROM other")
    before, comment = contents(scratch_cluster, "shop_test"), stamp_of(scratch_cluster)
    nasty.migration("0002_bad.sql", "SELECT 1/0;", stream="literal")
    with pytest.raises(ResetFailed, match="division by zero"):
        inside.reset()
    assert contents(scratch_cluster, "shop_test") == before
    assert stamp_of(scratch_cluster) == comment
    assert leftovers(nasty) == []


def stamp_of(cluster: ScratchCluster, name: str = "shop_test") -> Any:
    """Return a database's comment."""
    return cluster.value(f"SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = {literal(name)}")


def test_a_first_reset_that_fails_leaves_nothing_under_the_names(nasty: SampleRepository) -> None:
    """Not even the placeholder that literal names need."""
    nasty.migration("0002_bad.sql", "SELECT 1/0;", stream="literal")
    before = state(nasty)
    with pytest.raises(ResetFailed, match="division by zero"):
        Inside(nasty).reset()
    assert state(nasty) == before


def test_a_killed_migration_that_wrote_over_the_stamp_does_not_lose_the_database(
    nasty: SampleRepository, scratch_cluster: ScratchCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database under construction says which one it replaces: the next reset needs no --adopt."""

    def killed(*_: object) -> None:
        raise SystemExit

    inside = Inside(nasty)
    for existed in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(templates.Guise, "remove", killed)
            patch.setattr(reset, "_clean_up", killed)
            with pytest.raises(SystemExit):
                inside.reset(fresh=True)
        assert stamp_of(scratch_cluster) == "written by a migration"
        inside.reset(fresh=existed)
        assert leftovers(nasty) == []
        assert stamp_of(scratch_cluster).startswith('{"')


def test_a_stream_without_inputs_is_never_cached(reset_once: SampleRepository) -> None:
    """What a command reads is not known, so every reset migrates."""
    text = reset_once.root.joinpath("harness.toml").read_text()
    stream = '[[migrations]]\nstream = "tool"\ncommand = ["sh", "-c", "psql -qX \\"$DATABASE_URL\\" -c \'CREATE TABLE tool()\'"]\n\n'
    reset_once.settings(text.replace("[packages]", stream + "[packages]"))
    before = within.templates(reset_once)
    for _ in range(2):
        found = Inside(reset_once).reset()
        assert [(one.source, one.fingerprint, one.migrations) for one in found] == [("migrated", None, 2)] * 2
    assert within.templates(reset_once) == before
