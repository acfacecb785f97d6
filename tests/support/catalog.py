"""The catalog of a database as plain values, for comparing two databases or two points in time."""

from support.clusters import Connection

# Every query returns (name, definition); system schemas are left out.
QUERIES = {
    "schema": """
        select nspname, (select array_agg(a::text order by a::text)
                         from aclexplode(coalesce(nspacl, acldefault('n', nspowner))) as a)::text
        from pg_namespace as n where {ours}
    """,
    "table": """
        select format('%s.%s', nspname, relname),
               format('%s rls=%s %s', relkind, relrowsecurity, array_to_string(reloptions, ','))
        from pg_class as c join pg_namespace as n on n.oid = relnamespace
        where {ours} and relkind in ('r', 'p', 'v', 'm', 'S')
    """,
    "grant": """
        select format('%s.%s', nspname, relname), format('%s %s', grantee::regrole, privilege_type)
        from pg_class as c join pg_namespace as n on n.oid = relnamespace,
             aclexplode(coalesce(relacl, acldefault(case relkind when 'S' then 's'::"char" else 'r' end, relowner)))
        where {ours} and relkind in ('r', 'p', 'v', 'm', 'S')
    """,
    "column": """
        select format('%s.%s.%s', nspname, relname, attname),
               concat_ws(' ', format_type(atttypid, atttypmod),
                         case when attnotnull then 'not null' end,
                         case when attidentity <> '' then 'identity' end,
                         'default ' || replace(pg_get_expr(adbin, adrelid), 'pabal.now()', 'now()'))
        from pg_attribute as a join pg_class as c on c.oid = attrelid join pg_namespace as n on n.oid = relnamespace
             left join pg_attrdef as d on adrelid = attrelid and adnum = attnum
        where {ours} and relkind in ('r', 'p', 'v', 'm') and attnum > 0 and not attisdropped
    """,
    "column storage": """
        select format('%s.%s.%s', nspname, relname, attname),
               format('%s generated=%s collation=%s', attstorage, attgenerated, attcollation::regcollation)
        from pg_attribute as a join pg_class as c on c.oid = attrelid join pg_namespace as n on n.oid = relnamespace
        where {ours} and relkind in ('r', 'p', 'v', 'm') and attnum > 0 and not attisdropped
    """,
    "not null constraint": """
        select format('%s.%s.%s', nspname, relname, conname), pg_get_constraintdef(k.oid)
        from pg_constraint as k join pg_class as c on c.oid = conrelid join pg_namespace as n on n.oid = relnamespace
        where {ours} and contype = 'n'
    """,
    "constraint": """
        select format('%s.%s.%s', nspname, relname, conname), pg_get_constraintdef(k.oid)
        from pg_constraint as k join pg_class as c on c.oid = conrelid join pg_namespace as n on n.oid = relnamespace
        where {ours} and contype <> 'n'
    """,
    "index": """
        select format('%s.%s', nspname, relname), pg_get_indexdef(c.oid)
        from pg_class as c join pg_namespace as n on n.oid = relnamespace
        where {ours} and relkind = 'i'
    """,
    "trigger": """
        select format('%s.%s.%s', nspname, relname, tgname), pg_get_triggerdef(t.oid)
        from pg_trigger as t join pg_class as c on c.oid = tgrelid join pg_namespace as n on n.oid = relnamespace
        where {ours} and not tgisinternal
    """,
    "function": """
        select p.oid::regprocedure::text, format('%s %s', pg_get_functiondef(p.oid),
               (select array_agg(a::text order by a::text)
                from aclexplode(coalesce(proacl, acldefault('f', proowner))) as a))
        from pg_proc as p join pg_namespace as n on n.oid = pronamespace where {ours} and prokind in ('f', 'p')
    """,
    "policy": """
        select format('%s.%s.%s', schemaname, tablename, policyname),
               format('%s %s %s %s', cmd, roles, qual, with_check)
        from pg_policies join pg_namespace as n on nspname = schemaname where {ours}
    """,
    "type": """
        select t.oid::regtype::text, typtype::text
        from pg_type as t join pg_namespace as n on n.oid = typnamespace
        where {ours} and typtype in ('e', 'd', 'c') and typrelid = 0
    """,
    "comment": """
        select pg_describe_object(classoid, objoid, objsubid), description
        from pg_description join pg_class as c on c.oid = objoid and classoid = 'pg_class'::regclass
             join pg_namespace as n on n.oid = relnamespace where {ours}
        union all
        select pg_describe_object(classoid, objoid, objsubid), description
        from pg_description join pg_proc as p on p.oid = objoid and classoid = 'pg_proc'::regclass
             join pg_namespace as n on n.oid = pronamespace where {ours}
    """,
    "schema comment": """
        select nspname, obj_description(n.oid, 'pg_namespace') from pg_namespace as n where {ours}
    """,
}
OURS = "n.nspname <> 'information_schema' and n.nspname !~ '^pg_'"


async def read(conn: Connection, kind: str) -> dict[str, str]:
    """Names and definitions of all objects of one kind."""
    return dict(await _rows(conn, kind))


async def snapshot(conn: Connection) -> set[tuple[str, str, str]]:
    """Kind, name and definition of every object."""
    return {(kind, name, definition) for kind in QUERIES for name, definition in await _rows(conn, kind)}


async def _rows(conn: Connection, kind: str) -> list[tuple[str, str]]:
    rows = await conn.fetch(QUERIES[kind].replace("{ours}", OURS))
    return [(str(name), str(definition)) for name, definition in rows]
