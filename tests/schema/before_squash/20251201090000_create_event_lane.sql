-- The moving part of the event lane. What waits, who holds what and who stands in line are kept in three narrow tables,
-- so that a claim reads due rows only and the wide row's own changes stay in place (HOT). The seed's five indexes on
-- moving columns stand here, where their purpose is served, or as BRIN, which does not stop a change from staying in place.
-- event_queue remains the truth: triggers keep the three in step with whatever plain SQL does to it.

create table if not exists pabal.event_due (
  id uuid primary key,
  service text not null,
  priority smallint not null,
  due_at timestamptz not null,
  seq bigint not null,
  ordering_key text,
  expires_at timestamptz,
  is_retry boolean not null default false
) with (
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);
comment on table pabal.event_due is 'One narrow row for each pending event that may be handed out when it falls due.';
comment on column pabal.event_due.id is 'The event.';
comment on column pabal.event_due.service is 'To whom it is owed: a claim always names its service.';
comment on column pabal.event_due.priority is 'Copied from the event: 1 first.';
comment on column pabal.event_due.due_at is 'Not handed out before this.';
comment on column pabal.event_due.seq is 'The order of publishing.';
comment on column pabal.event_due.ordering_key is 'Set for the head of a line; see pabal.event_lines.';
comment on column pabal.event_due.expires_at is 'Copied from the event: cancelled instead of handed out after this.';
comment on column pabal.event_due.is_retry is 'It was handed out before.';

-- The claim's road: this service, the most urgent first, the longest due first.
create index if not exists idx_event_queue_pending on pabal.event_due (service, priority, due_at);
create index if not exists idx_event_queue_retry on pabal.event_due (due_at) where is_retry;
create index if not exists event_due_expiry on pabal.event_due (expires_at) where expires_at is not null;

create table if not exists pabal.event_leases (
  id uuid primary key,
  service text not null,
  processor_id text not null,
  claimed_at timestamptz not null default pabal.now(),
  until timestamptz not null,
  ids uuid[] not null,
  held integer not null
) with (
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);
-- Five hundred ids are read whole or not at all; compressing them costs the claim more than the space is worth.
alter table pabal.event_leases alter column ids set storage external;
comment on table pabal.event_leases is 'One row for each claimed batch: its id is the fence on the events it holds.';
comment on column pabal.event_leases.id is 'The fence, found again in event_queue.lease.';
comment on column pabal.event_leases.service is 'For whom it was claimed.';
comment on column pabal.event_leases.processor_id is 'Who claimed it.';
comment on column pabal.event_leases.claimed_at is 'When.';
comment on column pabal.event_leases.until is 'When the lease ends unless it is extended.';
comment on column pabal.event_leases.ids is 'What was claimed; an event still held carries the fence.';
comment on column pabal.event_leases.held is 'How many of them are still held.';

-- The holder's timeout.
create index if not exists idx_event_queue_processing on pabal.event_leases (until);

create table if not exists pabal.event_lines (
  service text not null,
  ordering_key text not null,
  seq bigint not null,
  id uuid not null unique,
  lease uuid,
  is_sure boolean not null default false,
  primary key (service, ordering_key, seq)
) with (fillfactor = 70);
comment on table pabal.event_lines is 'Everybody who stands in line: the unfinished events of an ordering key, in their order.';
comment on column pabal.event_lines.service is 'To whom the line leads.';
comment on column pabal.event_lines.ordering_key is 'The key they share.';
comment on column pabal.event_lines.seq is 'Their place.';
comment on column pabal.event_lines.id is 'The event.';
comment on column pabal.event_lines.lease is 'Set while this one is handed out.';
comment on column pabal.event_lines.is_sure is 'Somebody will call it: it was seen beside a predecessor that was not leaving, or it is due itself.';

-- Two claimers that look at the same moment could each hand out one of a key; here the second fails and looks again.
create unique index if not exists event_lines_one_at_a_time on pabal.event_lines (service, ordering_key) where lease is not null;
-- An event joins a line in its publisher's transaction; whoever leaves the line meanwhile cannot see it and calls nobody.
-- So each that joined behind another is looked at once more after its commit.
create index if not exists event_lines_unsure on pabal.event_lines (seq) where not is_sure;

-- By status and by end, for people and for plain SQL. A BRIN index lets a change stay in place from version 16 on; before
-- that it would cost every change of the row a new entry in every index, so there the lane does without the two.
do $$
begin
  if current_setting('server_version_num')::integer >= 160000 then
    create index if not exists idx_event_queue_status on public.event_queue
      using brin (status) with (pages_per_range = 16, autosummarize = on);
    create index if not exists idx_event_queue_processed_at on public.event_queue
      using brin (processed_at) with (pages_per_range = 16, autosummarize = on);
  end if;
end
$$;

alter table pabal.event_due enable row level security;
alter table pabal.event_leases enable row level security;
alter table pabal.event_lines enable row level security;
drop policy if exists "event_due_service_role_all" on pabal.event_due;
create policy "event_due_service_role_all" on pabal.event_due for all to service_role using (true) with check (true);
drop policy if exists "event_leases_service_role_all" on pabal.event_leases;
create policy "event_leases_service_role_all" on pabal.event_leases for all to service_role using (true) with check (true);
drop policy if exists "event_lines_service_role_all" on pabal.event_lines;
create policy "event_lines_service_role_all" on pabal.event_lines for all to service_role using (true) with check (true);
revoke all on pabal.event_due, pabal.event_leases, pabal.event_lines from public, anon, authenticated;
grant select, insert, update, delete on pabal.event_due, pabal.event_leases, pabal.event_lines to service_role;

-- Arriving ---------------------------------------------------------------------------------------------------------------
-- One statement for however many rows an insert brings. Of a line only the head is due: whoever finds nobody before it.

create or replace function pabal.events_arrive() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  insert into pabal.event_lines (service, ordering_key, seq, id)
  select a.target_service, a.ordering_key, a.seq, a.id
  from arrived a
  where a.status = 'pending' and a.target_service is not null and a.ordering_key is not null;

  insert into pabal.event_due (id, service, priority, due_at, seq, ordering_key, expires_at, is_retry)
  select a.id, a.target_service, a.priority, coalesce(a.next_retry_at, pabal.now()), a.seq, a.ordering_key, a.expires_at, a.retry_count > 0
  from arrived a
  where a.status = 'pending' and a.target_service is not null
    and (
      a.ordering_key is null
      or a.seq = (  -- written so that it is one step in the key's index, however long the line
        select l.seq from pabal.event_lines l
        where l.service = a.target_service and l.ordering_key = a.ordering_key
        order by l.seq
        limit 1
      )
    );
  return null;
end
$$;
comment on function pabal.events_arrive() is 'Owes new pending events to their targets; of a line only the head is due.';
revoke all on function pabal.events_arrive() from public, anon, authenticated;

drop trigger if exists event_queue_arrives on public.event_queue;
create trigger event_queue_arrives
  after insert on public.event_queue
  referencing new table as arrived
  for each statement
  execute function pabal.events_arrive();

-- Moving -----------------------------------------------------------------------------------------------------------------
-- The engine's own statements change the lease whenever they change the status, and keep what is due and what is held
-- themselves. A statement that knows nothing of leases (somebody's plain SQL) is followed here.

create or replace function pabal.event_moves() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  if old.lease is not null then
    if new.status = old.status then
      return new;  -- somebody holds it and goes on holding it; what changed counts when it falls due again
    end if;
    update pabal.event_leases set held = held - 1 where id = old.lease;
    new.lease := null;
  end if;
  delete from pabal.event_due where id = new.id;
  if new.status in ('pending', 'processing') and new.target_service is not null and new.ordering_key is not null then
    insert into pabal.event_lines (service, ordering_key, seq, id)
    values (new.target_service, new.ordering_key, new.seq, new.id)
    on conflict (id) do update set service = excluded.service, lease = null;
  end if;
  if new.status = 'pending' and new.target_service is not null then
    insert into pabal.event_due (id, service, priority, due_at, seq, ordering_key, expires_at, is_retry)
    select new.id, new.target_service, new.priority, coalesce(new.next_retry_at, pabal.now()), new.seq, new.ordering_key,
           new.expires_at, new.retry_count > 0
    where new.ordering_key is null
      or new.seq = (
        select l.seq from pabal.event_lines l
        where l.service = new.target_service and l.ordering_key = new.ordering_key
        order by l.seq
        limit 1
      );
  end if;
  return new;
end
$$;
comment on function pabal.event_moves() is 'Follows a plain SQL change of an event in the lane''s narrow tables.';
revoke all on function pabal.event_moves() from public, anon, authenticated;

drop trigger if exists event_queue_moves on public.event_queue;
create trigger event_queue_moves
  before update on public.event_queue
  for each row
  when (
    new.lease is not distinct from old.lease
    and (
      new.status <> old.status
      or new.priority <> old.priority
      or new.next_retry_at is distinct from old.next_retry_at
      or new.expires_at is distinct from old.expires_at
      or new.target_service is distinct from old.target_service
    )
  )
  execute function pabal.event_moves();

-- Standing in line -------------------------------------------------------------------------------------------------------
-- Whoever moves an event with a key, the line follows.

create or replace function pabal.line_follows() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  if new.status in ('pending', 'processing') then
    update pabal.event_lines set lease = new.lease where id = new.id;
  else
    perform pabal.leave_line(new.id);
  end if;
  return null;
end
$$;
comment on function pabal.line_follows() is 'Marks who of a line is handed out, and calls the next when one has ended.';
revoke all on function pabal.line_follows() from public, anon, authenticated;

drop trigger if exists event_queue_in_line on public.event_queue;
create trigger event_queue_in_line
  after update on public.event_queue
  for each row
  when (
    new.ordering_key is not null
    and (new.lease is distinct from old.lease or new.status <> old.status)
  )
  execute function pabal.line_follows();

create or replace function pabal.leave_line(event uuid) returns void
language plpgsql
security definer
set search_path = ''
as $$
declare
  gone pabal.event_lines;
  head pabal.event_lines;
begin
  delete from pabal.event_lines where id = event returning * into gone;
  select * into head
  from pabal.event_lines
  where service = gone.service and ordering_key = gone.ordering_key
  order by seq
  limit 1;
  if head.seq > gone.seq then
    perform pabal.call_event(head.id);
  elsif head.id is not null then
    -- Out of the middle. Whoever stands before it may be leaving at this moment too and call it instead of its successor,
    -- so the successor is looked at once more after the commit.
    update pabal.event_lines l
    set is_sure = false
    from (
      select seq
      from pabal.event_lines
      where service = gone.service and ordering_key = gone.ordering_key and seq > gone.seq
      order by seq
      limit 1
    ) next
    where l.service = gone.service and l.ordering_key = gone.ordering_key and l.seq = next.seq;
  end if;
end
$$;
comment on function pabal.leave_line(uuid) is 'Takes an event out of its line and makes the next one due.';
revoke all on function pabal.leave_line(uuid) from public, anon, authenticated;
grant execute on function pabal.leave_line(uuid) to service_role;

create or replace function pabal.call_event(event uuid) returns void
language plpgsql
security definer
set search_path = ''
as $$
declare
  called public.event_queue;
begin
  -- Locked, so that whoever cancels or moves it next sees it among the due. Being changed already, it may be about to
  -- end: then it is not called now but looked at again after the commit.
  select * into called from public.event_queue where id = event for share skip locked;
  if called.id is null then
    update pabal.event_lines set is_sure = false where id = event;
  elsif called.status = 'pending' then
    insert into pabal.event_due (id, service, priority, due_at, seq, ordering_key, expires_at, is_retry)
    values (called.id, called.target_service, called.priority, coalesce(called.next_retry_at, pabal.now()), called.seq,
            called.ordering_key, called.expires_at, called.retry_count > 0)
    on conflict (id) do nothing;
  end if;
end
$$;
comment on function pabal.call_event(uuid) is 'Makes the head of a line due.';
revoke all on function pabal.call_event(uuid) from public, anon, authenticated;
grant execute on function pabal.call_event(uuid) to service_role;

-- Leaving ----------------------------------------------------------------------------------------------------------------

create or replace function pabal.event_leaves() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  delete from pabal.event_due where id = old.id;
  if old.lease is not null then
    update pabal.event_leases set held = held - 1 where id = old.lease;
  end if;
  if old.ordering_key is not null then
    perform pabal.leave_line(old.id);
  end if;
  return null;
end
$$;
comment on function pabal.event_leaves() is 'Forgets an unfinished event that somebody deleted.';
revoke all on function pabal.event_leaves() from public, anon, authenticated;

drop trigger if exists event_queue_leaves on public.event_queue;
create trigger event_queue_leaves
  after delete on public.event_queue
  for each row
  when (old.status in ('pending', 'processing'))
  execute function pabal.event_leaves();

-- Remembering ------------------------------------------------------------------------------------------------------------

create or replace function pabal.remember(history jsonb, attempt integer, worker text, error text, code text) returns jsonb
language sql
stable
set search_path = ''
as $$
  select case when jsonb_array_length(coalesce(history, '[]')) >= 20 then history - 0 else coalesce(history, '[]') end
    || jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
         'at', pabal.now(), 'attempt', attempt, 'worker', worker, 'error', left(error, 2000), 'code', code)));
$$;
comment on function pabal.remember(jsonb, integer, text, text, text) is 'Adds an attempt to an error history, which keeps the last twenty.';
revoke all on function pabal.remember(jsonb, integer, text, text, text) from public, anon, authenticated;
grant execute on function pabal.remember(jsonb, integer, text, text, text) to service_role;

-- Ringing ----------------------------------------------------------------------------------------------------------------
-- The hub's own connections are named pabal and ring after their commit, many rows at once; everybody else's inserts ring
-- here. A ring is a hint: losing one costs a second, not an event.

create or replace function pabal.ring() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  perform pg_catalog.pg_notify('pabal', 'sql ' || tg_argv[0]);
  return null;
end
$$;
comment on function pabal.ring() is 'Wakes who waits for the bell it is given.';
revoke all on function pabal.ring() from public, anon, authenticated;

drop trigger if exists event_queue_rings on public.event_queue;
create trigger event_queue_rings
  after insert on public.event_queue
  for each statement
  when (pg_catalog.current_setting('application_name') <> 'pabal')
  execute function pabal.ring('events');

-- What was published before there was a lane --------------------------------------------------------------------------------

insert into pabal.event_lines (service, ordering_key, seq, id)
select target_service, ordering_key, seq, id
from public.event_queue
where status = 'pending' and target_service is not null and ordering_key is not null;

insert into pabal.event_due (id, service, priority, due_at, seq, ordering_key, expires_at, is_retry)
select e.id, e.target_service, e.priority, coalesce(e.next_retry_at, pabal.now()), e.seq, e.ordering_key, e.expires_at, e.retry_count > 0
from public.event_queue e
where e.status = 'pending' and e.target_service is not null
  and (e.ordering_key is null or not exists (
    select from pabal.event_lines l
    where l.service = e.target_service and l.ordering_key = e.ordering_key and l.seq < e.seq
  ));
