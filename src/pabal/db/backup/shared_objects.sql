-- name: list_shared_objects
-- Objects that Pabal creates only where they are missing, and that this database has: the names of pabal.created_objects.
select o.kind, o.name
from (values
  ('schema', 'auth'), ('schema', 'guild'), ('schema', 'identity'), ('schema', 'notification'), ('schema', 'pabal'),
  ('table', 'auth.users'), ('table', 'public.profiles'), ('table', 'guild.guilds'), ('table', 'identity.users'),
  ('function', 'auth.uid()'), ('function', 'public.update_updated_at_column()'),
  ('usage', 'service_role on public'), ('usage', 'authenticated on public'),
  ('usage', 'service_role on notification'), ('usage', 'pabal_publisher on notification')
) as o (kind, name)
where case o.kind
  when 'schema' then exists (select from pg_namespace n where n.nspname = o.name)
  when 'table' then exists (
    select from pg_class c join pg_namespace n on n.oid = c.relnamespace where format('%s.%s', n.nspname, c.relname) = o.name)
  when 'function' then exists (
    select from pg_proc p join pg_namespace n on n.oid = p.pronamespace
    where p.pronargs = 0 and format('%s.%s()', n.nspname, p.proname) = o.name)
  else exists (
    select from pg_roles r join pg_namespace n on format('%s on %s', r.rolname, n.nspname) = o.name
    where has_schema_privilege(r.oid, n.oid, 'usage'))
end
order by 1, 2;

-- name: forget_created_objects
delete from pabal.created_objects c
using unnest(:kinds::text[], :names::text[]) as o (kind, name)
where (c.kind, c.name) = (o.kind, o.name);

-- name: list_default_grants
-- Statements that revoke what default privileges of this database gave to anon and authenticated on the hub's objects.
with grantees as (
  select distinct a.grantee
  from pg_default_acl d
  cross join lateral aclexplode(d.defaclacl) a
  where a.grantee in (to_regrole('anon'), to_regrole('authenticated'))
),
hub_tables as (
  select c.oid
  from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
  where c.relkind in ('r', 'p') and format('%s.%s', n.nspname, c.relname) = any(:tables::text[])
)
select format('revoke all on %s %s from %s', case c.relkind when 'S' then 'sequence' else 'table' end, c.oid::regclass, g.grantee::regrole)
from pg_class c
cross join grantees g
where c.oid in (select t.oid from hub_tables t)
   or (c.relkind = 'S' and exists (
        select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.refobjid in (select t.oid from hub_tables t)))
   or (c.relkind = 'S' and c.oid in (select to_regclass(s.name) from unnest(:sequences::text[]) as s (name)))
union all
select format('revoke all on function %s from %s', p.oid::regprocedure, g.grantee::regrole)
from pg_proc p
join pg_namespace n on n.oid = p.pronamespace
cross join grantees g
where format('%s.%s', n.nspname, p.proname) = any(:functions::text[]);
