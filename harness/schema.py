"""What a database holds, as text that two databases with the same schema share; and whether rows came since."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.database import quoted

if TYPE_CHECKING:
    from harness.database import Connection

_OURS = "n.nspname !~ '^pg_' AND n.nspname NOT IN ('information_schema', 'pgharness')"
"""Where users' objects live."""
_UNOWNED = "NOT EXISTS (SELECT FROM pg_depend x WHERE x.classid = {0}::regclass AND x.objid = {1}.oid AND x.deptype = 'e')"
"""What an extension brings along is told by the extension's version."""

_PARTS = (
    """SELECT 'schema', quote_ident(n.nspname), concat_ws(' ', pg_get_userbyid(n.nspowner), n.nspacl::text) FROM pg_namespace n WHERE {ours}""",
    """SELECT 'extension', quote_ident(e.extname), concat_ws(' ', e.extversion, e.extnamespace::regnamespace) FROM pg_extension e""",
    """SELECT 'relation', c.oid::regclass::text, concat_ws(' ', c.relkind, c.relpersistence, pg_get_userbyid(c.relowner), c.relacl::text,
         c.relrowsecurity, c.relforcerowsecurity, c.relreplident, c.reloptions::text, am.amname, ts.spcname, pg_get_partkeydef(c.oid),
         pg_get_expr(c.relpartbound, c.oid), (SELECT string_agg(i.inhparent::regclass::text, ', ' ORDER BY i.inhseqno) FROM pg_inherits i
         WHERE i.inhrelid = c.oid), CASE WHEN c.relkind IN ('v', 'm') THEN pg_get_viewdef(c.oid) END)
       FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_am am ON am.oid = c.relam
       LEFT JOIN pg_tablespace ts ON ts.oid = c.reltablespace WHERE c.relkind <> 'i' AND c.relkind <> 'I' AND {ours} AND {unowned_class}""",
    """SELECT 'column', c.oid::regclass || '.' || quote_ident(a.attname), concat_ws(' ', a.attnum - (SELECT count(*) FROM pg_attribute d
         WHERE d.attrelid = c.oid AND d.attisdropped AND d.attnum > 0 AND d.attnum < a.attnum), format_type(a.atttypid, a.atttypmod),
         co.collname, CASE WHEN a.attnotnull THEN 'NOT NULL' END, a.attidentity, a.attgenerated, a.attstorage, a.attacl::text,
         a.attoptions::text, a.attfdwoptions::text, pg_get_expr(d.adbin, d.adrelid))
       FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
       LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum LEFT JOIN pg_collation co ON co.oid = a.attcollation
       WHERE a.attnum > 0 AND NOT a.attisdropped AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'c') AND {ours} AND {unowned_class}""",
    """SELECT 'index', c.oid::regclass::text, concat_ws(' ', pg_get_indexdef(i.indexrelid), i.indisvalid, i.indisclustered, i.indisreplident,
         c.reloptions::text) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
       WHERE {ours} AND {unowned_class}""",
    """SELECT 'sequence', s.seqrelid::regclass::text, concat_ws(' ', format_type(s.seqtypid, NULL), s.seqstart, s.seqincrement, s.seqmin, s.seqmax,
         s.seqcache, s.seqcycle, (SELECT d.refobjid::regclass || ' ' || d.refobjsubid FROM pg_depend d WHERE d.classid = 'pg_class'::regclass
         AND d.objid = s.seqrelid AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')))
       FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE {ours} AND {unowned_class}""",
    """SELECT 'constraint', coalesce(nullif(o.conrelid, 0)::regclass::text, nullif(o.contypid, 0)::regtype::text) || '.' || quote_ident(o.conname),
         concat_ws(' ', pg_get_constraintdef(o.oid), o.convalidated) FROM pg_constraint o JOIN pg_namespace n ON n.oid = o.connamespace
       WHERE {ours} AND {unowned_constraint}""",
    """SELECT 'type', t.oid::regtype::text, concat_ws(' ', t.typtype, pg_get_userbyid(t.typowner), t.typacl::text, t.typnotnull, t.typdefault,
         CASE WHEN t.typbasetype <> 0 THEN format_type(t.typbasetype, t.typtypmod) END,
         (SELECT string_agg(quote_literal(e.enumlabel), ', ' ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = t.oid),
         (SELECT concat_ws(' ', format_type(r.rngsubtype, NULL), r.rngcanonical, r.rngsubdiff) FROM pg_range r WHERE r.rngtypid = t.oid))
       FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace LEFT JOIN pg_class c ON c.oid = t.typrelid
       WHERE t.typcategory <> 'A' AND (t.typrelid = 0 OR c.relkind = 'c') AND {ours} AND {unowned_type}""",
    """SELECT 'routine', p.oid::regprocedure::text, concat_ws(' ', pg_get_userbyid(p.proowner), p.proacl::text, p.prokind,
         CASE WHEN p.prokind = 'a' THEN (SELECT concat_ws(' ', g.aggtransfn, g.aggfinalfn, g.aggtranstype::regtype, g.agginitval)
         FROM pg_aggregate g WHERE g.aggfnoid = p.oid) ELSE pg_get_functiondef(p.oid) END)
       FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE {ours} AND {unowned_proc}""",
    """SELECT 'trigger', t.tgrelid::regclass || '.' || quote_ident(t.tgname), concat_ws(' ', t.tgenabled, pg_get_triggerdef(t.oid))
       FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE NOT t.tgisinternal AND {ours}""",
    """SELECT 'rule', r.ev_class::regclass || '.' || quote_ident(r.rulename), concat_ws(' ', r.ev_enabled, pg_get_ruledef(r.oid))
       FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class JOIN pg_namespace n ON n.oid = c.relnamespace
       WHERE r.rulename <> '_RETURN' AND {ours}""",
    """SELECT 'policy', p.polrelid::regclass || '.' || quote_ident(p.polname), concat_ws(' ', p.polcmd, p.polpermissive,
         (SELECT string_agg(CASE WHEN o = 0 THEN 'public' ELSE pg_get_userbyid(o) END, ', ' ORDER BY o = 0, pg_get_userbyid(o))
         FROM unnest(p.polroles) o), pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid)) FROM pg_policy p""",
    """SELECT 'operator', o.oid::regoperator::text, concat_ws(' ', o.oprcode, o.oprcom::regoper, o.oprnegate::regoper, o.oprcanmerge, o.oprcanhash)
       FROM pg_operator o JOIN pg_namespace n ON n.oid = o.oprnamespace WHERE {ours} AND {unowned_operator}""",
    """SELECT 'statistics', quote_ident(n.nspname) || '.' || quote_ident(s.stxname), pg_get_statisticsobjdef(s.oid)
       FROM pg_statistic_ext s JOIN pg_namespace n ON n.oid = s.stxnamespace WHERE {ours}""",
    """SELECT 'collation', quote_ident(n.nspname) || '.' || quote_ident(c.collname), concat_ws(' ', c.collprovider, c.collisdeterministic,
         c.collcollate) FROM pg_collation c JOIN pg_namespace n ON n.oid = c.collnamespace WHERE {ours}""",
    """SELECT 'publication', quote_ident(p.pubname), concat_ws(' ', p.puballtables, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate,
         (SELECT string_agg(r.prrelid::regclass::text, ', ' ORDER BY r.prrelid::regclass::text) FROM pg_publication_rel r
         WHERE r.prpubid = p.oid)) FROM pg_publication p""",
    """SELECT 'event trigger', quote_ident(e.evtname), concat_ws(' ', e.evtevent, e.evtenabled, e.evttags::text, e.evtfoid::regprocedure)
       FROM pg_event_trigger e""",
    """SELECT 'server', quote_ident(s.srvname), concat_ws(' ', w.fdwname, s.srvtype, s.srvversion, s.srvoptions::text, s.srvacl::text)
       FROM pg_foreign_server s JOIN pg_foreign_data_wrapper w ON w.oid = s.srvfdw""",
    """SELECT 'cast', format('%s AS %s', c.castsource::regtype, c.casttarget::regtype), concat_ws(' ', nullif(c.castfunc, 0)::regprocedure,
         c.castcontext, c.castmethod) FROM pg_cast c WHERE c.oid >= 16384 AND {unowned_cast}""",
    """SELECT 'default rights', concat_ws(' ', pg_get_userbyid(d.defaclrole), nullif(d.defaclnamespace, 0)::regnamespace, d.defaclobjtype),
         d.defaclacl::text FROM pg_default_acl d""",
    """SELECT 'comment', i.type || ' ' || i.identity, d.description FROM pg_description d
       CROSS JOIN LATERAL pg_identify_object(d.classoid, d.objoid, d.objsubid) i WHERE d.objoid >= 16384 AND i.schema IS DISTINCT FROM 'pgharness'
       AND NOT EXISTS (SELECT FROM pg_depend x WHERE x.classid = d.classoid AND x.objid = d.objoid AND x.deptype = 'e')
       AND d.classoid <> 'pg_extension'::regclass""",
)
_QUERY = " UNION ALL ".join(_PARTS).format(
    ours=_OURS,
    unowned_class=_UNOWNED.format("'pg_class'", "c"),
    unowned_constraint=_UNOWNED.format("'pg_constraint'", "o"),
    unowned_type=_UNOWNED.format("'pg_type'", "t"),
    unowned_proc=_UNOWNED.format("'pg_proc'", "p"),
    unowned_operator=_UNOWNED.format("'pg_operator'", "o"),
    unowned_cast=_UNOWNED.format("'pg_cast'", "c"),
)


def describe(connection: Connection) -> tuple[str, ...]:
    """Return the schema of the connection's database, the ledger's aside: one sorted line per object, without oids.

    Two databases with the same description hold the same objects with the same owners and rights; their rows may differ.
    """
    with connection.transaction():
        connection.execute("SET LOCAL search_path = pg_catalog")
        rows = connection.execute(_QUERY).fetchall()
    return tuple(sorted(f"{kind} {name}: {definition}" for kind, name, definition in rows))


def differences(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Return what two descriptions do not share, one line each, in order; nothing for equal schemas."""
    found = [(line, "first") for line in set(first) - set(second)] + [(line, "second") for line in set(second) - set(first)]
    return [f"only the {where} time: {line}" for line, where in sorted(found)]


def watermark(connection: Connection) -> str:
    """Return a mark in the server's time that every later transaction lies behind."""
    row = connection.execute("SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text").fetchone()
    return str(row[0]) if row else ""


def has_new_rows(connection: Connection, mark: str) -> bool:
    """Say whether a table of the database, the ledger's aside, has a row that came or changed behind the mark."""
    tables = connection.execute(
        f"""SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            WHERE c.relkind IN ('r', 'm') AND {_OURS} AND pg_catalog.has_table_privilege(c.oid, 'SELECT')"""  # noqa: S608  # constant parts
    ).fetchall()
    xid = f"'{int(mark) % 2**32}'::xid"
    for namespace, name in tables:
        query = f"SELECT EXISTS (SELECT FROM {quoted(namespace)}.{quoted(name)} WHERE pg_catalog.age(xmin) <= pg_catalog.age({xid}))"  # noqa: S608  # quoted
        row = connection.execute(query).fetchone()
        if row and row[0]:
            return True
    return False
