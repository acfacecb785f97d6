-- Rate limits (GCRA).

-- Unlogged: a limit that is lost in a crash costs nothing, a WAL record for every request would. No index on tat, which
-- every request changes; the chore that removes idle limits reads the whole table, which is small.
create unlogged table if not exists pabal.limits (
  key text primary key,
  tat timestamptz not null
) with (fillfactor = 70);
comment on table pabal.limits is 'Rate limits (GCRA): one row per limit and subject.';
comment on column pabal.limits.key is 'Name of the limit, a colon, and the subject it applies to.';
comment on column pabal.limits.tat is 'Theoretical arrival time: when the bucket will be empty again.';

alter table pabal.limits enable row level security;
drop policy if exists "limits_service_role_all" on pabal.limits;
create policy "limits_service_role_all" on pabal.limits for all to service_role using (true) with check (true);
revoke all on table pabal.limits from public, anon, authenticated;
grant select, insert, update, delete on table pabal.limits to service_role;

create or replace function pabal.take_limit(key text, step interval, span interval, wanted integer) returns integer
language plpgsql
set search_path = ''
as $$
declare
  empty_at timestamptz;
  granted integer;
begin
  insert into pabal.limits as l (key, tat) values (take_limit.key, pabal.now()) on conflict do nothing;
  select greatest(l.tat, pabal.now()) into empty_at from pabal.limits l where l.key = take_limit.key for no key update;
  granted := greatest(0, least(
    take_limit.wanted,
    floor(extract(epoch from pabal.now() + take_limit.span - empty_at) / extract(epoch from take_limit.step))::integer
  ));
  if granted > 0 then
    update pabal.limits l set tat = empty_at + take_limit.step * granted where l.key = take_limit.key;
  end if;
  return granted;
end
$$;
comment on function pabal.take_limit(text, interval, interval, integer) is 'Takes up to the wanted number of calls from a limit; returns how many were granted.';
revoke all on function pabal.take_limit(text, interval, interval, integer) from public, anon, authenticated;
grant execute on function pabal.take_limit(text, interval, interval, integer) to service_role;

-- Inlined into the statement that calls it.
create or replace function pabal.limits_of(subjects text[]) returns table (key text)
language sql stable parallel safe
begin atomic
  select l.key
  from pabal.limits l
  where substr(l.key, strpos(l.key, ':') + 1) = any(limits_of.subjects)
     or regexp_split_to_array(l.key, '[: ]') && limits_of.subjects;
end;
comment on function pabal.limits_of(text[]) is 'Keys of the limits that apply to one of these subjects.';
revoke all on function pabal.limits_of(text[]) from public, anon, authenticated;
grant execute on function pabal.limits_of(text[]) to service_role;

create or replace function pabal.delete_limits_of(subjects text[]) returns bigint
language sql
set search_path = ''
as $$
  with deleted as (
    delete from pabal.limits l where l.key in (select o.key from pabal.limits_of(subjects) o) returning l.key
  )
  select count(*) from deleted
$$;
comment on function pabal.delete_limits_of(text[]) is 'Deletes the limits that apply to one of these subjects; returns how many.';
revoke all on function pabal.delete_limits_of(text[]) from public, anon, authenticated;
grant execute on function pabal.delete_limits_of(text[]) to service_role;

create or replace function pabal.has_limit(key text) returns boolean
language sql stable
set search_path = ''
as $$ select exists (select from pabal.limits l where l.key = has_limit.key) $$;
comment on function pabal.has_limit(text) is 'Whether calls were counted under this key lately.';
revoke all on function pabal.has_limit(text) from public, anon, authenticated;
grant execute on function pabal.has_limit(text) to service_role;
