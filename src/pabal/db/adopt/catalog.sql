-- name: list_columns
select format('%s.%s', n.nspname, c.relname) as table_name, a.attname::text as name,
       format_type(a.atttypid, a.atttypmod) as type, a.attnotnull as is_required,
       pg_get_expr(d.adbin, d.adrelid) as default_value
from pg_attribute a
join pg_class c on c.oid = a.attrelid
join pg_namespace n on n.oid = c.relnamespace
left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where a.attnum > 0 and not a.attisdropped and format('%s.%s', n.nspname, c.relname) = any(:tables::text[])
order by 1, a.attnum;

-- name: list_parts
-- Constraints, indexes, triggers and policies of the tables. Indexes of constraints are left out, and so are the NOT NULL
-- constraints of version 18: both are described by what they belong to.
select format('%s.%s', n.nspname, c.relname) as table_name, part.kind, part.name::text, part.definition
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
cross join lateral (
  select 'constraint' as kind, k.conname as name, pg_get_constraintdef(k.oid) as definition
  from pg_constraint k
  where k.conrelid = c.oid and k.contype not in ('n', 't')
  union all
  select case when i.indisunique then 'unique index' else 'index' end, x.relname, pg_get_indexdef(i.indexrelid)
  from pg_index i
  join pg_class x on x.oid = i.indexrelid
  where i.indrelid = c.oid and not exists (select from pg_constraint k where k.conindid = i.indexrelid and k.conrelid = c.oid)
  union all
  select 'trigger', t.tgname, pg_get_triggerdef(t.oid)
  from pg_trigger t
  where t.tgrelid = c.oid and not t.tgisinternal
  union all
  select 'policy', p.polname, pg_get_expr(p.polqual, p.polrelid)
  from pg_policy p
  where p.polrelid = c.oid
) part
where format('%s.%s', n.nspname, c.relname) = any(:tables::text[])
order by 1, 2, 3;

-- name: list_tables
select format('%s.%s', n.nspname, c.relname) as name, c.relkind::text as kind,
       pg_has_role(c.relowner, 'usage') as is_owned, c.relowner::regrole::text as owner,
       row_security_active(c.oid) as hides_rows
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where format('%s.%s', n.nspname, c.relname) = any(:tables::text[])
order by 1;

-- name: list_dependents
-- What depends on the tables without being part of one of them: views, foreign keys and policies of other tables, children,
-- functions with their row type, and publications.
with adopted as (
  select c.oid, c.reltype, format('%s.%s', n.nspname, c.relname) as name
  from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
  where format('%s.%s', n.nspname, c.relname) = any(:tables::text[])
),
parts as (
  select 'pg_constraint'::regclass as class, k.oid from pg_constraint k where k.conrelid in (select oid from adopted)
  union all
  select 'pg_trigger'::regclass, t.oid from pg_trigger t where t.tgrelid in (select oid from adopted)
  union all
  select 'pg_policy'::regclass, p.oid from pg_policy p where p.polrelid in (select oid from adopted)
  union all
  select 'pg_attrdef'::regclass, d.oid from pg_attrdef d where d.adrelid in (select oid from adopted)
  union all
  select 'pg_class'::regclass, i.indexrelid from pg_index i where i.indrelid in (select oid from adopted)
)
select a.name as table_name, pg_describe_object(d.classid, d.objid, 0) as name
from adopted a
join pg_depend d on d.deptype = 'n' and (
  (d.refclassid = 'pg_class'::regclass and d.refobjid = a.oid)
  or (d.refclassid = 'pg_type'::regclass and d.refobjid = a.reltype)
)
where not exists (select from parts p where p.class = d.classid and p.oid = d.objid)
union
select a.name, 'publication ' || p.pubname
from adopted a
join pg_publication_rel r on r.prrelid = a.oid
join pg_publication p on p.oid = r.prpubid
order by 1, 2;

-- name: list_grants
-- Privileges of roles that the migrations grant nothing to: those on the table, and those on columns.
select format('%s.%s', n.nspname, c.relname) as table_name, a.grantee::regrole::text as role,
       string_agg(distinct lower(a.privilege_type), ', ' order by lower(a.privilege_type)) as privileges
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
cross join lateral (
  select x.grantee, x.privilege_type from aclexplode(c.relacl) x
  union all
  select x.grantee, x.privilege_type
  from pg_attribute t
  cross join lateral aclexplode(t.attacl) x
  where t.attrelid = c.oid and not t.attisdropped
) a
where format('%s.%s', n.nspname, c.relname) = any(:tables::text[]) and a.grantee <> 0 and a.grantee <> c.relowner
  and a.grantee::regrole::text not in ('anon', 'authenticated', 'service_role', 'pabal_publisher')
group by 1, 2
order by 1, 2;

-- name: list_functions
select format('%s.%s(%s)', n.nspname, p.proname, replace(oidvectortypes(p.proargtypes), ', ', ',')) as signature,
       p.prorettype::regtype::text as result, pg_has_role(p.proowner, 'usage') as is_owned
from pg_proc p
join pg_namespace n on n.oid = p.pronamespace
where format('%s.%s', n.nspname, p.proname) = any(:names::text[])
order by 1;
