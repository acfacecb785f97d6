-- Rows that transactions lock to exclude each other, instead of advisory locks: every login of the database can take an
-- advisory lock and hold it, while these rows are reached by service_role only.

create table if not exists pabal.row_locks (
  kind text not null,
  slot integer not null,
  constraint row_locks_pkey primary key (kind, slot)
);
comment on table pabal.row_locks is 'Rows that are locked and never changed: one per chore, and 1,024 per kind of name.';
comment on column pabal.row_locks.kind is 'What is locked: a kind of name, or a chore.';
comment on column pabal.row_locks.slot is 'Hash of the name; 0 for a chore.';

alter table pabal.row_locks enable row level security;
drop policy if exists "row_locks_service_role_all" on pabal.row_locks;
create policy "row_locks_service_role_all" on pabal.row_locks for all to service_role using (true) with check (true);
revoke all on table pabal.row_locks from public, anon, authenticated;
grant select, insert, update, delete on table pabal.row_locks to service_role;

insert into pabal.row_locks (kind, slot)
select k.kind, s.slot
from unnest('{preferences of person,preferences of user,relay stream of account,relay stream of token,storm,toasts}'::text[]) as k (kind)
cross join generate_series(0, 1023) as s (slot)
on conflict do nothing;

-- Names of one kind may share a row, so a transaction locks all names of a kind in one call; kinds are locked in one order.
create or replace function pabal.lock_names(kind text, names text[]) returns void
language plpgsql
set search_path = ''
as $$
declare
  slots integer[] := array(
    select distinct (hashtextextended(n.name, 0) & 1023)::integer from unnest(lock_names.names) as n (name)
  );
  locked integer;
begin
  perform from pabal.row_locks l where l.kind = lock_names.kind and l.slot = any(slots) order by l.slot for update;
  get diagnostics locked = row_count;
  if locked < cardinality(slots) then
    raise exception 'pabal.row_locks lacks rows of the kind %', lock_names.kind;
  end if;
end
$$;
comment on function pabal.lock_names(text, text[]) is 'Waits for the transactions that hold one of these names, and holds all of them until the transaction ends.';
revoke all on function pabal.lock_names(text, text[]) from public, anon, authenticated;
grant execute on function pabal.lock_names(text, text[]) to service_role;

alter table pabal.chores add column if not exists every interval;
comment on column pabal.chores.every is 'How often it runs.';
alter table pabal.chores add column if not exists last_success_at timestamptz not null default pabal.now();
comment on column pabal.chores.last_success_at is 'When it last finished a batch without an error; when it first started, if never.';

create or replace function notification.lock_recipient_toasts() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  perform pabal.lock_names('toasts', array[new.recipient_id]);
  if tg_op = 'INSERT' then
    new.seq := nextval('notification.toast_changes');
  end if;
  return new;
end
$$;
