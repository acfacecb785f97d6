-- name: find_relations
-- Tables, views, indexes and sequences with one of these names, and the table of an index.
select format('%s.%s', n.nspname, c.relname) as name, c.relkind::text as kind,
       (select format('%s.%s', tn.nspname, t.relname)
        from pg_index i
        join pg_class t on t.oid = i.indrelid
        join pg_namespace tn on tn.oid = t.relnamespace
        where i.indexrelid = c.oid) as table_name
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where format('%s.%s', n.nspname, c.relname) = any(:names::text[])
order by 1;

-- name: find_types
-- Types that are not the row type of a table: a table of the same name cannot be created.
select format('%s.%s', n.nspname, t.typname) as name
from pg_type t
join pg_namespace n on n.oid = t.typnamespace
where t.typrelid = 0 and format('%s.%s', n.nspname, t.typname) = any(:names::text[])
order by 1;

-- name: find_functions
select format('%s.%s', n.nspname, p.proname) as name, format('%s.%s(%s)', n.nspname, p.proname, replace(oidvectortypes(p.proargtypes), ', ', ',')) as signature
from pg_proc p
join pg_namespace n on n.oid = p.pronamespace
where format('%s.%s', n.nspname, p.proname) = any(:names::text[])
order by 1, 2;

-- name: find_shared_columns
-- Columns of tables of other systems: their type, the labels of an enum, and whether a foreign key can refer to them.
select format('%s.%s', n.nspname, c.relname) as table_name, a.attname as name, format_type(a.atttypid, null) as type,
       array(select e.enumlabel::text from pg_enum e where e.enumtypid = a.atttypid order by e.enumsortorder) as labels,
       exists (
         select from pg_index i
         where i.indrelid = c.oid and i.indisunique and i.indpred is null and i.indkey::text = a.attnum::text
       ) as is_unique
from pg_attribute a
join pg_class c on c.oid = a.attrelid
join pg_namespace n on n.oid = c.relnamespace
where a.attnum > 0 and not a.attisdropped and format('%s.%s', n.nspname, c.relname) = any(:tables::text[]);

-- name: find_shared_functions
select format('%s.%s()', n.nspname, p.proname) as signature, p.prorettype::regtype::text as result
from pg_proc p
join pg_namespace n on n.oid = p.pronamespace
where p.pronargs = 0 and format('%s.%s()', n.nspname, p.proname) = any(:signatures::text[])
order by 1;

-- name: find_role
-- The role that migrates, and which of these roles do not exist.
select current_user::text as name, has_database_privilege(current_database(), 'create') as may_create_schema,
       (select r.rolsuper or r.rolcreaterole from pg_roles r where r.rolname = current_user) as may_create_role,
       array(select name from unnest(:roles::text[]) name where to_regrole(name) is null) as missing_roles;

-- name: find_schemas
select n.nspname::text as name, has_schema_privilege(n.oid, 'usage') as may_use, has_schema_privilege(n.oid, 'create') as may_create
from pg_namespace n
where n.nspname = any(:names::text[])
order by 1;

-- name: find_closed_tables
-- Tables that the role may not refer to by a foreign key.
select format('%s.%s', n.nspname, c.relname) as name
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where format('%s.%s', n.nspname, c.relname) = any(:names::text[]) and not has_table_privilege(c.oid, 'references')
order by 1;
