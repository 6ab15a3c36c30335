"""What the objects of a database are defined as, asked in one query so that two answers can be compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from harness.inventory import FIRST_OF_ITS_OWN

if TYPE_CHECKING:
    from harness.database import Connection


def definitions(connection: Connection) -> dict[tuple[str, str], int]:
    """Return a hash of every object's definition, by its kind and name; what belongs to a table or an extension counts as part of it."""
    return {(kind, name): int(total) for kind, name, total in connection.execute(_definitions().encode())}


def _definitions() -> str:
    parts = [f"SELECT kind, name, {row} FROM {source}" for row, source in _OF_RELATIONS]
    parts += [f"SELECT {kind}, {name}, {row} FROM {source}" for kind, name, row, source in _OF_OTHERS]
    parts += [_plain(*one) for one in _PLAIN]
    everything = " UNION ALL ".join(parts)
    return f"""
        WITH rel AS MATERIALIZED (
            SELECT c.*, CASE c.relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialised view' WHEN 'S' THEN 'sequence' WHEN 'f' THEN 'foreign table'
                        WHEN 'c' THEN 'type' ELSE 'table' END AS kind, format('%I.%I', n.nspname, c.relname) AS name
            FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE c.oid >= {FIRST_OF_ITS_OWN} AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S', 'c') AND c.relpersistence <> 't'),
        seq AS (
            SELECT s.seqrelid, s.seqtypid, s.seqstart, s.seqincrement, s.seqmax, s.seqmin, s.seqcache, s.seqcycle, owner.kind, owner.name
            FROM pg_sequence s JOIN rel ON rel.oid = s.seqrelid
            LEFT JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = s.seqrelid AND d.refclassid = 'pg_class'::regclass
                AND d.deptype IN ('a', 'i')
            JOIN rel owner ON owner.oid = coalesce(d.refobjid, rel.oid))
        SELECT kind, name, sum(hashtextextended(definition, 0))::text FROM ({everything}) AS part(kind, name, definition) GROUP BY 1, 2"""


def _plain(kind: str, catalogue: str, name: str) -> str:
    own = f"c.oid >= {FIRST_OF_ITS_OWN} AND {_NO_MEMBER.format(catalogue, 'c')}"
    return f"SELECT '{kind}', {name}, (to_jsonb(c) - 'oid')::text FROM {catalogue} c WHERE {own}"


def _rights(column: str, default: str) -> str:
    # Without any GRANT the column is NULL, and after GRANT and REVOKE it says the same in full.
    return f"array(SELECT r::text FROM unnest(coalesce({column}, {default})) r ORDER BY 1)"


_NO_MEMBER = "NOT EXISTS (SELECT FROM pg_depend e WHERE e.classid = '{0}'::regclass AND e.objid = {1}.oid AND e.deptype IN ('e', 'i'))"

_OF_RELATIONS: Iterable[tuple[str, str]] = (
    (
        f"""ROW(relowner::regrole, {_rights("relacl", "CASE relkind WHEN 'S' THEN acldefault('s', relowner) ELSE acldefault('r', relowner) END")}, reloptions,
               relpersistence, relrowsecurity, relforcerowsecurity, relreplident, relispartition, relispopulated,
               pg_get_expr(relpartbound, oid), reltablespace)::text""",
        (
            "rel WHERE NOT (relkind = 'S' AND EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = rel.oid "
            "AND d.deptype IN ('a', 'i')))"
        ),
    ),
    (
        """ROW(attname, atttypid::regtype, atttypmod, attnotnull, attidentity, attgenerated, coalesce(attacl, '{}'), attoptions, attcollation::regcollation, attstorage,
               attstattarget, to_jsonb(a) -> 'attcompression',
               pg_get_expr(adbin, adrelid))::text""",
        (
            "rel JOIN pg_attribute a ON a.attrelid = rel.oid AND a.attnum > 0 AND NOT a.attisdropped AND rel.relkind <> 'S' "
            "LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum"
        ),
    ),
    ("ROW(conname, convalidated, pg_get_constraintdef(o.oid))::text", "rel JOIN pg_constraint o ON o.conrelid = rel.oid"),
    (
        "ROW(CASE WHEN tgisinternal THEN tgfoid::regproc::text ELSE pg_get_triggerdef(t.oid) END, tgenabled)::text",
        "rel JOIN pg_trigger t ON t.tgrelid = rel.oid AND (NOT tgisinternal OR tgenabled <> 'O')",
    ),
    ("ROW(ev_enabled, pg_get_ruledef(w.oid))::text", "rel JOIN pg_rewrite w ON w.ev_class = rel.oid"),
    (
        "ROW(polname, polcmd, polpermissive, polroles::regrole[], pg_get_expr(polqual, polrelid), pg_get_expr(polwithcheck, polrelid))::text",
        "rel JOIN pg_policy p ON p.polrelid = rel.oid",
    ),
    (
        "ROW(i.relname, i.reloptions, x.indisvalid, x.indisreplident, x.indisclustered, pg_get_indexdef(i.oid))::text",
        "rel JOIN pg_index x ON x.indrelid = rel.oid JOIN pg_class i ON i.oid = x.indexrelid",
    ),
    ("ROW(objsubid, description)::text", "rel JOIN pg_description m ON m.classoid = 'pg_class'::regclass AND m.objoid = rel.oid"),
    ("ROW(inhparent::regclass)::text", "rel JOIN pg_inherits h ON h.inhrelid = rel.oid"),
    ("ROW(seqrelid::regclass, seqtypid::regtype, seqstart, seqincrement, seqmax, seqmin, seqcache, seqcycle)::text", "seq"),
)
_OF_OTHERS = (
    (
        "CASE p.prokind WHEN 'p' THEN 'procedure' WHEN 'a' THEN 'aggregate' ELSE 'function' END",
        "p.oid::regprocedure::text",
        f"""ROW(obj_description(p.oid, 'pg_proc'), p.proowner::regrole, {_rights("p.proacl", "acldefault('f', p.proowner)")}, CASE WHEN p.prokind <> 'a' THEN pg_get_functiondef(p.oid) ELSE g::text END)::text""",
        f"pg_proc p LEFT JOIN pg_aggregate g ON g.aggfnoid = p.oid WHERE p.oid >= {FIRST_OF_ITS_OWN} AND {_NO_MEMBER.format('pg_proc', 'p')}",
    ),
    (
        "'type'",
        "t.oid::regtype::text",
        f"""ROW(obj_description(t.oid, 'pg_type'), t.typtype, t.typowner::regrole, {_rights("t.typacl", "acldefault('T', t.typowner)")}, t.typbasetype::regtype, t.typtypmod, t.typnotnull, t.typdefault,
               (SELECT array_agg(enumlabel ORDER BY enumsortorder) FROM pg_enum WHERE enumtypid = t.oid),
               (SELECT array_agg(pg_get_constraintdef(oid) ORDER BY conname) FROM pg_constraint WHERE contypid = t.oid))::text""",
        f"pg_type t WHERE t.oid >= {FIRST_OF_ITS_OWN} AND t.typrelid = 0 AND t.typcategory <> 'A' AND {_NO_MEMBER.format('pg_type', 't')}",
    ),
    (
        "'schema'",
        "quote_ident(n.nspname)",
        f"""ROW(obj_description(n.oid, 'pg_namespace'), n.nspowner::regrole, {_rights("n.nspacl", "acldefault('n', n.nspowner)")})::text""",
        "pg_namespace n WHERE n.nspname !~ '^pg_(toast_)?temp_'",
    ),
    ("'large object'", "oid::text", "ROW(lomowner::regrole, lomacl)::text", "pg_largeobject_metadata"),
)
_PLAIN = (
    ("extension", "pg_extension", "quote_ident(c.extname)"),
    ("event trigger", "pg_event_trigger", "quote_ident(c.evtname)"),
    ("publication", "pg_publication", "quote_ident(c.pubname)"),
    ("foreign server", "pg_foreign_server", "quote_ident(c.srvname)"),
    ("foreign-data wrapper", "pg_foreign_data_wrapper", "quote_ident(c.fdwname)"),
    ("language", "pg_language", "quote_ident(c.lanname)"),
    ("collation", "pg_collation", "quote_ident(c.collname)"),
    ("text search configuration", "pg_ts_config", "quote_ident(c.cfgname)"),
    ("text search dictionary", "pg_ts_dict", "quote_ident(c.dictname)"),
    ("text search parser", "pg_ts_parser", "quote_ident(c.prsname)"),
    ("text search template", "pg_ts_template", "quote_ident(c.tmplname)"),
    ("conversion", "pg_conversion", "quote_ident(c.conname)"),
    ("access method", "pg_am", "quote_ident(c.amname)"),
    ("operator class", "pg_opclass", "concat(c.opcname, ' for ', c.opcintype::regtype)"),
    ("operator family", "pg_opfamily", "quote_ident(c.opfname)"),
    ("transform", "pg_transform", "concat('for ', c.trftype::regtype)"),
    ("extended statistics", "pg_statistic_ext", "quote_ident(c.stxname)"),
    ("operator", "pg_operator", "c.oid::regoperator::text"),
    ("cast", "pg_cast", "concat(c.castsource::regtype, ' to ', c.casttarget::regtype)"),
    ("default rights", "pg_default_acl", "concat(c.defaclrole::regrole, ' ', c.defaclobjtype)"),
)
