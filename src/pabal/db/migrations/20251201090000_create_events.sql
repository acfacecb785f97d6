-- The event lane: subscriptions, the tables that claims read, the triggers that maintain them, and publishing from SQL.
--
-- Pending events, leases and ordering are kept in three narrow tables, so a claim reads due rows only and updates of the
-- wide event row stay HOT. public.event_queue is the source of truth: triggers keep the three tables in step with any
-- plain SQL that changes it.

-- Subscriptions --------------------------------------------------------------------------------------------------------

create or replace function pabal.like_patterns(event_types text[]) returns text[]
language sql immutable parallel safe
set search_path = ''
as $$
  select array_agg(replace(replace(event_type, '_', '\_'), '*', '%') order by position)
  from unnest(event_types) with ordinality as t (event_type, position)
$$;
comment on function pabal.like_patterns(text[]) is 'Event types with * as LIKE patterns.';
revoke all on function pabal.like_patterns(text[]) from public, anon, authenticated;
grant execute on function pabal.like_patterns(text[]) to service_role;

create or replace function pabal.are_event_patterns(event_types text[]) returns boolean
language sql immutable parallel safe
set search_path = ''
as $$
  select cardinality(event_types) between 1 and 50
     and not exists (
       select from unnest(event_types) as t (event_type)
       where event_type is null or length(event_type) > 128 or event_type !~ '^[a-z0-9_*]+(\.[a-z0-9_*]+)*$'
     )
$$;
comment on function pabal.are_event_patterns(text[]) is 'Whether these are one to fifty event types, in which * matches anything.';
revoke all on function pabal.are_event_patterns(text[]) from public, anon, authenticated;
grant execute on function pabal.are_event_patterns(text[]) to service_role;

create table if not exists pabal.subscriptions (
  id uuid primary key default pabal.uuid7(),
  service_name text not null references public.services (name) on delete cascade,
  mode text not null,
  event_types text[] not null,
  patterns text[] not null generated always as (pabal.like_patterns(event_types)) stored,
  description text,
  url text,
  secret text,
  previous_secret text,
  previous_secret_until timestamptz,
  timeout_seconds integer not null default 15,
  paused_at timestamptz,
  disabled_at timestamptz,
  disabled_reason text,
  failures integer not null default 0,
  open_until timestamptz,
  created_at timestamptz not null default pabal.now(),
  updated_at timestamptz not null default pabal.now(),
  program text not null default '',
  seen_at timestamptz,
  constraint subscription_mode check (mode in ('pull', 'push', 'handler', 'rule')),
  constraint subscription_event_types check (pabal.are_event_patterns(event_types)),
  constraint subscription_push_has_url check ((mode = 'push') = (url is not null) and (mode = 'push') = (secret is not null)),
  constraint subscription_url_length check (length(url) <= 2048),
  constraint subscription_timeout check (timeout_seconds between 1 and 60),
  constraint subscription_disabled_has_reason check ((disabled_at is null) = (disabled_reason is null)),
  constraint subscription_previous_secret_has_end check ((previous_secret is null) = (previous_secret_until is null))
);
comment on table pabal.subscriptions is 'Which events a service receives, and how.';
comment on column pabal.subscriptions.id is 'Id of the subscription.';
comment on column pabal.subscriptions.service_name is 'The receiving service.';
comment on column pabal.subscriptions.mode is 'pull: the service fetches; push: the hub posts to url; handler: code in a worker; rule: a notification rule of the hub.';
comment on column pabal.subscriptions.event_types is 'Event types; * matches anything, as in order.*';
comment on column pabal.subscriptions.patterns is 'The same types as LIKE patterns.';
comment on column pabal.subscriptions.description is 'Description for people.';
comment on column pabal.subscriptions.url is 'Target of pushes.';
comment on column pabal.subscriptions.secret is 'Secret that pushes are signed with (encrypted).';
comment on column pabal.subscriptions.previous_secret is 'Previous secret; pushes are signed with both during a rotation (encrypted).';
comment on column pabal.subscriptions.previous_secret_until is 'When the previous secret stops being used.';
comment on column pabal.subscriptions.timeout_seconds is 'Timeout of a push.';
comment on column pabal.subscriptions.paused_at is 'When delivery was paused; events queue up meanwhile.';
comment on column pabal.subscriptions.disabled_at is 'When it was disabled; it receives no more events.';
comment on column pabal.subscriptions.disabled_reason is 'Why it was disabled.';
comment on column pabal.subscriptions.failures is 'Failed pushes since the last success.';
comment on column pabal.subscriptions.open_until is 'Circuit breaker: no push before this time, then one probe.';
comment on column pabal.subscriptions.created_at is 'When it was created.';
comment on column pabal.subscriptions.updated_at is 'When the row last changed.';
comment on column pabal.subscriptions.program is 'For handlers: the program they belong to. Several programs may handle events of one service.';
comment on column pabal.subscriptions.seen_at is 'For handlers: when the program last ran, to the hour. A program that is not seen for long is disabled.';
create index if not exists idx_subscriptions_service_name on pabal.subscriptions (service_name);
-- One handler subscription per service and program.
create unique index if not exists idx_subscriptions_program on pabal.subscriptions (service_name, program) where mode = 'handler';
drop trigger if exists update_subscriptions_updated_at on pabal.subscriptions;
create trigger update_subscriptions_updated_at
  before update on pabal.subscriptions
  for each row
  when (new.updated_at is not distinct from old.updated_at)
  execute function public.update_updated_at_column();

-- Due events -----------------------------------------------------------------------------------------------------------

create table if not exists pabal.event_due (
  id uuid primary key,
  service text not null,
  priority smallint not null,
  due_at timestamptz not null,
  seq bigint not null,
  ordering_key text,
  expires_at timestamptz,
  is_retry boolean not null default false,
  event_type text collate "C" not null default ''
) with (
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);
comment on table pabal.event_due is 'One narrow row for each pending event that may be claimed once it is due.';
comment on column pabal.event_due.id is 'The event.';
comment on column pabal.event_due.service is 'Target service; a claim is always for one service.';
comment on column pabal.event_due.priority is 'Copied from the event; 1 is the most urgent.';
comment on column pabal.event_due.due_at is 'Not claimed before this time.';
comment on column pabal.event_due.seq is 'Order of publishing.';
comment on column pabal.event_due.ordering_key is 'Set if the event is the first of its ordering key; see pabal.event_order.';
comment on column pabal.event_due.expires_at is 'Copied from the event; it is cancelled instead of claimed after this time.';
comment on column pabal.event_due.is_retry is 'Whether it was claimed before.';
comment on column pabal.event_due.event_type is 'Copied from the event, for claims of some types only. Collated by bytes, so types with a common prefix are adjacent.';

-- The claim: one service, most urgent first, longest due first.
create index if not exists idx_event_queue_pending on pabal.event_due (service, priority, due_at);
comment on index pabal.idx_event_queue_pending is 'Named by the specification for event_queue; on event_due because an index on event_queue.status would prevent HOT updates.';
create index if not exists idx_event_queue_retry on pabal.event_due (due_at) where is_retry;
comment on index pabal.idx_event_queue_retry is 'Named by the specification for event_queue; on event_due because an index on event_queue.next_retry_at would prevent HOT updates.';
create index if not exists event_due_expiry on pabal.event_due (expires_at) where expires_at is not null;
create index if not exists event_due_by_type on pabal.event_due (service, event_type, priority, due_at);

-- Leases ---------------------------------------------------------------------------------------------------------------

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
-- The array is always read whole; compressing 500 ids costs the claim more time than the space is worth.
alter table pabal.event_leases alter column ids set storage external;
comment on table pabal.event_leases is 'One row for each claimed batch. Its id is the fence of the events it holds.';
comment on column pabal.event_leases.id is 'The fence; the same as event_queue.lease of the held events.';
comment on column pabal.event_leases.service is 'Service the batch was claimed for.';
comment on column pabal.event_leases.processor_id is 'Process that claimed it.';
comment on column pabal.event_leases.claimed_at is 'When it was claimed.';
comment on column pabal.event_leases.until is 'When the lease expires unless it is extended.';
comment on column pabal.event_leases.ids is 'Claimed events; those still held carry the fence.';
comment on column pabal.event_leases.held is 'Number of events still held.';

-- Expired leases.
create index if not exists idx_event_queue_processing on pabal.event_leases (until);
comment on index pabal.idx_event_queue_processing is 'Named by the specification for event_queue; on event_leases because an index on event_queue.status would prevent HOT updates.';

-- Ordering -------------------------------------------------------------------------------------------------------------

create table if not exists pabal.event_order (
  service text not null,
  ordering_key text not null,
  seq bigint not null,
  id uuid not null unique,
  lease uuid,
  is_checked boolean not null default false,
  primary key (service, ordering_key, seq)
) with (fillfactor = 70);
comment on table pabal.event_order is 'Unfinished events with an ordering key, in order. Only the first of each key is due.';
comment on column pabal.event_order.service is 'Target service.';
comment on column pabal.event_order.ordering_key is 'The ordering key.';
comment on column pabal.event_order.seq is 'Order of publishing.';
comment on column pabal.event_order.id is 'The event.';
comment on column pabal.event_order.lease is 'Set while the event is claimed.';
comment on column pabal.event_order.is_checked is 'The event is due, or it was seen behind a predecessor that will make it due.';

-- Two claims at the same time could each take an event of one key; here the second fails and is repeated.
create unique index if not exists event_order_one_at_a_time on pabal.event_order (service, ordering_key) where lease is not null;
-- A publishing transaction inserts its event behind others. If the last of those ends before that transaction commits,
-- it cannot see the new event and does not make it due. So a chore checks each such event once after its commit.
create index if not exists event_order_unchecked on pabal.event_order (seq) where not is_checked;

-- BRIN indexes of the specification's columns that change. From version 16 on they allow HOT updates; before that every
-- update would write an entry into every index, so on version 15 they are left out.
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

-- Privileges -----------------------------------------------------------------------------------------------------------

alter table pabal.subscriptions enable row level security;
drop policy if exists "subscriptions_service_role_all" on pabal.subscriptions;
create policy "subscriptions_service_role_all" on pabal.subscriptions for all to service_role using (true) with check (true);
revoke all on table pabal.subscriptions from public, anon, authenticated;
grant select, insert, update, delete on table pabal.subscriptions to service_role;

alter table pabal.event_due enable row level security;
drop policy if exists "event_due_service_role_all" on pabal.event_due;
create policy "event_due_service_role_all" on pabal.event_due for all to service_role using (true) with check (true);
revoke all on table pabal.event_due from public, anon, authenticated;
grant select, insert, update, delete on table pabal.event_due to service_role;

alter table pabal.event_leases enable row level security;
drop policy if exists "event_leases_service_role_all" on pabal.event_leases;
create policy "event_leases_service_role_all" on pabal.event_leases for all to service_role using (true) with check (true);
revoke all on table pabal.event_leases from public, anon, authenticated;
grant select, insert, update, delete on table pabal.event_leases to service_role;

alter table pabal.event_order enable row level security;
drop policy if exists "event_order_service_role_all" on pabal.event_order;
create policy "event_order_service_role_all" on pabal.event_order for all to service_role using (true) with check (true);
revoke all on table pabal.event_order from public, anon, authenticated;
grant select, insert, update, delete on table pabal.event_order to service_role;

-- Insert ---------------------------------------------------------------------------------------------------------------

-- A broadcast is completed as it is published; its deliveries are rows with their own target, retries and end. Their
-- outcome is counted on read, so no row is updated by all of them.
create or replace function pabal.complete_broadcast() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  new.is_broadcast := true;
  new.status := 'completed';
  new.processed_at := pabal.now();
  return new;
end
$$;
comment on function pabal.complete_broadcast() is 'Completes a broadcast as it is published; its deliveries carry on.';
revoke all on function pabal.complete_broadcast() from public, anon, authenticated;

drop trigger if exists event_queue_complete_broadcast on public.event_queue;
create trigger event_queue_complete_broadcast
  before insert on public.event_queue
  for each row
  when (new.target_service is null and new.status = 'pending')
  execute function pabal.complete_broadcast();

-- One call for all rows of an insert.
create or replace function pabal.enqueue_inserted_events() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  insert into pabal.event_order (service, ordering_key, seq, id)
  select i.target_service, i.ordering_key, i.seq, i.id
  from inserted i
  where i.status = 'pending' and i.target_service is not null and i.ordering_key is not null;

  insert into pabal.event_due (id, service, priority, due_at, seq, ordering_key, expires_at, is_retry, event_type)
  select i.id, i.target_service, i.priority, coalesce(i.next_retry_at, pabal.now()), i.seq, i.ordering_key, i.expires_at,
         i.retry_count > 0, i.event_type
  from inserted i
  where i.status = 'pending' and i.target_service is not null
    and (
      i.ordering_key is null
      or i.seq = (  -- one index probe, however many events share the key
        select o.seq from pabal.event_order o
        where o.service = i.target_service and o.ordering_key = i.ordering_key
        order by o.seq
        limit 1
      )
    );

  -- A delivery of each broadcast for every subscribed service except its publisher, and a delivery to the hub of every
  -- event that a notification rule matches, for any target. In the order of publishing, which ordering keys keep.
  -- Deliveries fire this trigger too, and so does an insert of no rows; neither has anything to deliver.
  if exists (select from inserted i where i.parent_id is null) and exists (select from pabal.subscriptions) then
    insert into public.event_queue (
      id, event_type, source_service, target_service, payload, max_retries, next_retry_at, priority,
      parent_id, ordering_key, expires_at, correlation_id, traceparent
    )
    select pabal.uuid7(), i.event_type, i.source_service, r.service_name, i.payload, i.max_retries, i.next_retry_at, i.priority,
           i.id, i.ordering_key, i.expires_at, coalesce(i.correlation_id, i.id::text), i.traceparent
    from inserted i
    cross join lateral (
      select distinct s.service_name
      from pabal.subscriptions s
      join public.services v on v.name = s.service_name and v.is_active
      where s.disabled_at is null
        and i.event_type like any (s.patterns)
        and (s.mode = 'rule' or (i.is_broadcast and s.service_name <> i.source_service))
    ) r
    where i.parent_id is null and (i.is_broadcast or i.status = 'pending')
    order by i.seq, r.service_name;
  end if;
  return null;
end
$$;
comment on function pabal.enqueue_inserted_events() is 'Enqueues inserted pending events, only the first of each ordering key as due, and inserts the deliveries of broadcasts.';
revoke all on function pabal.enqueue_inserted_events() from public, anon, authenticated;

drop trigger if exists event_queue_enqueue_inserted on public.event_queue;
create trigger event_queue_enqueue_inserted
  after insert on public.event_queue
  referencing new table as inserted
  for each statement
  execute function pabal.enqueue_inserted_events();

-- The hub's own connections are named pabal and notify after their commit, once per batch. Inserts of other connections
-- notify here. A notification is a hint: if one is lost, workers poll within a second.
create or replace function pabal.notify_doorbell() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  perform pg_catalog.pg_notify('pabal', 'sql ' || tg_argv[0]);
  return null;
end
$$;
comment on function pabal.notify_doorbell() is 'Notifies the doorbell channel given as argument.';
revoke all on function pabal.notify_doorbell() from public, anon, authenticated;

drop trigger if exists event_queue_notify_inserted on public.event_queue;
create trigger event_queue_notify_inserted
  after insert on public.event_queue
  for each statement
  when (pg_catalog.current_setting('application_name') <> 'pabal')
  execute function pabal.notify_doorbell('events');

-- Update ---------------------------------------------------------------------------------------------------------------

-- Statements of the engine change the lease whenever they change the status, and maintain event_due and event_leases
-- themselves. A statement that does not know leases is followed here.
create or replace function pabal.sync_event_lane() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  if old.lease is not null then
    if new.status = old.status then
      return new;  -- still held; the changes take effect when the event is due again
    end if;
    update pabal.event_leases set held = held - 1 where id = old.lease;
    new.lease := null;
  end if;
  delete from pabal.event_due where id = new.id;
  if new.status in ('pending', 'processing') and new.target_service is not null and new.ordering_key is not null then
    insert into pabal.event_order (service, ordering_key, seq, id)
    values (new.target_service, new.ordering_key, new.seq, new.id)
    on conflict (id) do update set service = excluded.service, lease = null;
  end if;
  if new.status = 'pending' and new.target_service is not null then
    insert into pabal.event_due (id, service, priority, due_at, seq, ordering_key, expires_at, is_retry, event_type)
    select new.id, new.target_service, new.priority, coalesce(new.next_retry_at, pabal.now()), new.seq, new.ordering_key,
           new.expires_at, new.retry_count > 0, new.event_type
    where new.ordering_key is null
      or new.seq = (
        select o.seq from pabal.event_order o
        where o.service = new.target_service and o.ordering_key = new.ordering_key
        order by o.seq
        limit 1
      );
  end if;
  return new;
end
$$;
comment on function pabal.sync_event_lane() is 'Applies a plain SQL update of an event to the tables of the lane.';
revoke all on function pabal.sync_event_lane() from public, anon, authenticated;

drop trigger if exists event_queue_sync_lane on public.event_queue;
create trigger event_queue_sync_lane
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
      or new.event_type <> old.event_type
    )
  )
  execute function pabal.sync_event_lane();

create or replace function pabal.make_event_due(event uuid) returns void
language plpgsql
security definer
set search_path = ''
as $$
declare
  next_event public.event_queue;
begin
  -- Locked, so that the next statement that cancels or changes it finds it in event_due. An event that is locked already
  -- may be about to end; then it is checked again after that commit.
  select * into next_event from public.event_queue where id = event for share skip locked;
  if next_event.id is null then
    update pabal.event_order set is_checked = false where id = event;
  elsif next_event.status = 'pending' then
    insert into pabal.event_due (id, service, priority, due_at, seq, ordering_key, expires_at, is_retry, event_type)
    values (next_event.id, next_event.target_service, next_event.priority, coalesce(next_event.next_retry_at, pabal.now()),
            next_event.seq, next_event.ordering_key, next_event.expires_at, next_event.retry_count > 0, next_event.event_type)
    on conflict (id) do nothing;
  end if;
end
$$;
comment on function pabal.make_event_due(uuid) is 'Makes the first event of an ordering key due.';
revoke all on function pabal.make_event_due(uuid) from public, anon, authenticated;
grant execute on function pabal.make_event_due(uuid) to service_role;

create or replace function pabal.remove_from_event_order(event uuid) returns void
language plpgsql
security definer
set search_path = ''
as $$
declare
  removed pabal.event_order;
  first pabal.event_order;
begin
  delete from pabal.event_order where id = event returning * into removed;
  select * into first
  from pabal.event_order
  where service = removed.service and ordering_key = removed.ordering_key
  order by seq
  limit 1;
  if first.seq > removed.seq then
    perform pabal.make_event_due(first.id);
  elsif first.id is not null then
    -- Removed from the middle. Its predecessor may end at the same time and make this event due instead of its successor,
    -- so the successor is checked again after the commit.
    update pabal.event_order o
    set is_checked = false
    from (
      select seq
      from pabal.event_order
      where service = removed.service and ordering_key = removed.ordering_key and seq > removed.seq
      order by seq
      limit 1
    ) successor
    where o.service = removed.service and o.ordering_key = removed.ordering_key and o.seq = successor.seq;
  end if;
end
$$;
comment on function pabal.remove_from_event_order(uuid) is 'Removes an event from the order of its key and makes the next one due.';
revoke all on function pabal.remove_from_event_order(uuid) from public, anon, authenticated;
grant execute on function pabal.remove_from_event_order(uuid) to service_role;

create or replace function pabal.maintain_event_order() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  if new.status in ('pending', 'processing') then
    update pabal.event_order set lease = new.lease where id = new.id;
  else
    perform pabal.remove_from_event_order(new.id);
  end if;
  return null;
end
$$;
comment on function pabal.maintain_event_order() is 'Copies the lease of an ordered event to event_order, and removes the event when it ends.';
revoke all on function pabal.maintain_event_order() from public, anon, authenticated;

drop trigger if exists event_queue_maintain_order on public.event_queue;
create trigger event_queue_maintain_order
  after update on public.event_queue
  for each row
  when (
    new.ordering_key is not null
    and (new.lease is distinct from old.lease or new.status <> old.status)
  )
  execute function pabal.maintain_event_order();

-- processing_started_at is overwritten by the next attempt. A failed attempt copies it into the error history, in the
-- same write; attempts that succeed or are snoozed do not fire this.
create or replace function pabal.record_attempt_start() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  new.error_history := jsonb_set(new.error_history, '{-1,began}', to_jsonb(old.processing_started_at));
  return new;
end
$$;
comment on function pabal.record_attempt_start() is 'Adds the start time of a failed attempt to its entry in the error history.';
revoke all on function pabal.record_attempt_start() from public, anon, authenticated;

drop trigger if exists event_queue_attempt_start on public.event_queue;
create trigger event_queue_attempt_start
  before update on public.event_queue
  for each row
  when (
    old.lease is not null and new.lease is null and old.processing_started_at is not null
    and new.error_history is distinct from old.error_history
  )
  execute function pabal.record_attempt_start();

create or replace function pabal.append_error(history jsonb, attempt integer, worker text, error text, code text) returns jsonb
language sql
stable
set search_path = ''
as $$
  select case when jsonb_array_length(coalesce(history, '[]')) >= 20 then history - 0 else coalesce(history, '[]') end
    || jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
         'at', pabal.now(), 'attempt', attempt, 'worker', worker, 'error', left(error, 2000), 'code', code)));
$$;
comment on function pabal.append_error(jsonb, integer, text, text, text) is 'Appends a failed attempt to an error history, which keeps the last twenty.';
revoke all on function pabal.append_error(jsonb, integer, text, text, text) from public, anon, authenticated;
grant execute on function pabal.append_error(jsonb, integer, text, text, text) to service_role;

-- Delete ---------------------------------------------------------------------------------------------------------------

create or replace function pabal.remove_deleted_event() returns trigger
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
    perform pabal.remove_from_event_order(old.id);
  end if;
  return null;
end
$$;
comment on function pabal.remove_deleted_event() is 'Removes a deleted unfinished event from the tables of the lane.';
revoke all on function pabal.remove_deleted_event() from public, anon, authenticated;

drop trigger if exists event_queue_remove_deleted on public.event_queue;
create trigger event_queue_remove_deleted
  after delete on public.event_queue
  for each row
  when (old.status in ('pending', 'processing'))
  execute function pabal.remove_deleted_event();

-- Claim ----------------------------------------------------------------------------------------------------------------
-- Both functions are SQL bodies without a search path, so the planner inlines them into the claim.

create or replace function pabal.event_first_due(service text, patterns text[])
returns table (event_type text, priority smallint, due_at timestamptz)
language sql stable parallel safe
begin atomic
  -- Without patterns: the first due event of each priority.
  select null, first.priority, first.due_at
  from unnest('{1,2,3,4,5,6,7,8,9,10}'::smallint[]) as p (priority)
  cross join lateral (
    select d.priority, d.due_at
    from pabal.event_due d
    where d.service = event_first_due.service and d.priority = p.priority and d.due_at <= pabal.now()
    order by d.due_at
    limit 1
  ) first
  where event_first_due.patterns is null
  union
  -- With patterns: the first of each type and priority, from the pattern's prefix on. One index probe each, however many
  -- events are due.
  select first.event_type, first.priority, first.due_at
  from unnest(event_first_due.patterns) as p (pattern)
  cross join lateral (
    with recursive first as (
      (
        select d.event_type, d.priority, d.due_at
        from pabal.event_due d
        where d.service = event_first_due.service and d.event_type >= replace(split_part(p.pattern, '%', 1), '\_', '_')
        order by d.event_type, d.priority, d.due_at
        limit 1
      )
      union all
      select next.event_type, next.priority, next.due_at
      from first
      cross join lateral (
        select d.event_type, d.priority, d.due_at
        from pabal.event_due d
        where d.service = event_first_due.service and (d.event_type, d.priority) > (first.event_type, first.priority)
        order by d.event_type, d.priority, d.due_at
        limit 1
      ) next
      where starts_with(first.event_type, replace(split_part(p.pattern, '%', 1), '\_', '_'))
    )
    select * from first
  ) first
  where first.event_type like p.pattern and first.due_at <= pabal.now()
  order by 2, 3;
end;
comment on function pabal.event_first_due(text, text[]) is 'First due event of each priority of a service or, with patterns, of each matching type and priority.';
revoke all on function pabal.event_first_due(text, text[]) from public, anon, authenticated;
grant execute on function pabal.event_first_due(text, text[]) to service_role;

create or replace function pabal.event_scan(service text, event_type text, priority smallint, since timestamptz, max_rows bigint)
returns table (row_ctid tid, due_at timestamptz)
language sql stable parallel safe
begin atomic
  (
    select d.ctid, d.due_at
    from pabal.event_due d
    where event_scan.event_type is null and d.service = event_scan.service and d.priority = event_scan.priority
      and d.due_at >= event_scan.since and d.due_at <= pabal.now()
    order by d.due_at
    limit event_scan.max_rows
  )
  union all
  (
    -- Row comparisons in the order of the index: otherwise a plan made on an empty table uses the other index and skips
    -- every other type. (The comparison of the type alone is redundant, but tells a planner without statistics that these
    -- rows are few and best read in order.)
    select d.ctid, d.due_at
    from pabal.event_due d
    where d.service = event_scan.service and d.event_type = event_scan.event_type
      and (d.event_type, d.priority, d.due_at) >= (event_scan.event_type, event_scan.priority, event_scan.since)
      and (d.event_type, d.priority, d.due_at) <= (event_scan.event_type, event_scan.priority, pabal.now())
    order by d.event_type, d.priority, d.due_at
    limit event_scan.max_rows
  );
end;
comment on function pabal.event_scan(text, text, smallint, timestamptz, bigint) is 'Due events from one of pabal.event_first_due() on, longest due first.';
revoke all on function pabal.event_scan(text, text, smallint, timestamptz, bigint) from public, anon, authenticated;
grant execute on function pabal.event_scan(text, text, smallint, timestamptz, bigint) to service_role;

-- Publish --------------------------------------------------------------------------------------------------------------

create or replace function pabal.content_hash(
  event_type text, target text, payload jsonb, priority integer, max_retries integer,
  deliver_at timestamptz, expires_at timestamptz, ordering_key text
) returns bytea
language sql immutable parallel safe
set search_path = ''
as $$
  select sha256(convert_to(jsonb_build_array(
    event_type, target, payload, priority, max_retries,
    extract(epoch from deliver_at), extract(epoch from expires_at), ordering_key
  )::text, 'utf8'))
$$;
comment on function pabal.content_hash(text, text, jsonb, integer, integer, timestamptz, timestamptz, text) is 'Hash of what an idempotency key stands for. Trace ids are not part of it: a retry has its own.';
revoke all on function pabal.content_hash(text, text, jsonb, integer, integer, timestamptz, timestamptz, text) from public, anon, authenticated;
grant execute on function pabal.content_hash(text, text, jsonb, integer, integer, timestamptz, timestamptz, text) to service_role;

create or replace function pabal.publish(
  source text,
  event_type text,
  payload jsonb default '{}',
  target text default null,
  priority integer default 5,
  max_retries integer default 3,
  deliver_at timestamptz default null,
  expires_at timestamptz default null,
  idempotency_key text default null,
  ordering_key text default null,
  correlation_id text default null,
  traceparent text default null
) returns uuid
language plpgsql
security definer
set search_path = ''
as $$
#variable_conflict use_column
declare
  hash bytea := case when publish.idempotency_key is not null then pabal.content_hash(
    publish.event_type, publish.target, publish.payload, publish.priority, publish.max_retries,
    publish.deliver_at, publish.expires_at, publish.ordering_key) end;
  event_id uuid;
  is_same boolean;
begin
  if octet_length(publish.payload::text) > 262144 then
    raise exception 'payload: is larger than 262144 bytes' using errcode = 'program_limit_exceeded';
  end if;
  loop  -- between the two statements the first event of a key may be deleted or lose its key
    insert into public.event_queue (
      id, event_type, source_service, target_service, payload, priority, max_retries, next_retry_at, expires_at,
      idempotency_key, content_hash, ordering_key, correlation_id, traceparent
    ) values (
      pabal.uuid7(), publish.event_type, publish.source, publish.target, publish.payload, publish.priority,
      publish.max_retries, publish.deliver_at, publish.expires_at, publish.idempotency_key, hash, publish.ordering_key,
      publish.correlation_id, publish.traceparent
    )
    on conflict (source_service, idempotency_key) where idempotency_key is not null do nothing
    returning id into event_id;
    if event_id is not null then
      return event_id;
    end if;
    select e.id, e.content_hash is not distinct from hash into event_id, is_same
    from public.event_queue e
    where e.source_service = publish.source and e.idempotency_key = publish.idempotency_key;
    if is_same then
      return event_id;
    elsif event_id is not null then
      raise exception 'idempotency_key: was used for another event (%)', event_id using errcode = 'unique_violation';
    end if;
  end loop;
end
$$;
comment on function pabal.publish(text, text, jsonb, text, integer, integer, timestamptz, timestamptz, text, text, text, text) is 'Publishes an event in the caller''s transaction and returns its id. Publishing an idempotency key again returns the first event''s id.';
revoke all on function pabal.publish(text, text, jsonb, text, integer, integer, timestamptz, timestamptz, text, text, text, text) from public, anon, authenticated;
grant execute on function pabal.publish(text, text, jsonb, text, integer, integer, timestamptz, timestamptz, text, text, text, text) to service_role, pabal_publisher;

-- For other packages ---------------------------------------------------------------------------------------------------

create or replace function pabal.emit_event(event_type text, payload jsonb, priority integer default 5, id uuid default null)
returns uuid
language plpgsql
set search_path = ''
as $$
begin
  id := coalesce(emit_event.id, pabal.uuid7());
  insert into public.event_queue (id, event_type, source_service, priority, payload)
  values (emit_event.id, emit_event.event_type, 'hub', emit_event.priority, emit_event.payload);
  return emit_event.id;
end
$$;
comment on function pabal.emit_event(text, jsonb, integer, uuid) is 'Publishes a broadcast of the hub itself and returns its id.';
revoke all on function pabal.emit_event(text, jsonb, integer, uuid) from public, anon, authenticated;
grant execute on function pabal.emit_event(text, jsonb, integer, uuid) to service_role;

create or replace function pabal.emit_events(event_type text, payloads jsonb[]) returns bigint
language plpgsql
set search_path = ''
as $$
declare
  inserted bigint := 0;
begin
  -- Without a subscriber a broadcast ends as it begins: on a hot path the rows are not worth writing.
  if cardinality(emit_events.payloads) > 0 and exists (
    select from pabal.subscriptions s where s.disabled_at is null and emit_events.event_type like any (s.patterns)
  ) then
    insert into public.event_queue (id, event_type, source_service, payload)
    select pabal.uuid7(), emit_events.event_type, 'hub', p.payload
    from unnest(emit_events.payloads) with ordinality as p (payload, position)
    order by p.position;
    get diagnostics inserted = row_count;
  end if;
  return inserted;
end
$$;
comment on function pabal.emit_events(text, jsonb[]) is 'Publishes broadcasts of the hub itself in one statement, if there is a subscriber; returns how many.';
revoke all on function pabal.emit_events(text, jsonb[]) from public, anon, authenticated;
grant execute on function pabal.emit_events(text, jsonb[]) to service_role;

-- The functions below are inlined into the statements that call them.

create or replace function pabal.hub_events(event_type text, since timestamptz)
returns table (id uuid, created_at timestamptz, payload jsonb)
language sql stable parallel safe
begin atomic
  select e.id, e.created_at, e.payload
  from public.event_queue e
  where e.source_service = 'hub' and e.created_at > hub_events.since
    and e.event_type = hub_events.event_type and e.parent_id is null;
end;
comment on function pabal.hub_events(text, timestamptz) is 'Events of one type that the hub itself has published since a time.';
revoke all on function pabal.hub_events(text, timestamptz) from public, anon, authenticated;
grant execute on function pabal.hub_events(text, timestamptz) to service_role;

create or replace function pabal.hub_events_about(field text, value text)
returns table (id uuid, parent_id uuid, event_type text, created_at timestamptz, payload jsonb)
language sql stable parallel safe
begin atomic
  select e.id, e.parent_id, e.event_type, e.created_at, e.payload
  from public.event_queue e
  where e.source_service = 'hub' and e.payload ->> hub_events_about.field = hub_events_about.value;
end;
comment on function pabal.hub_events_about(text, text) is 'Events of the hub, and their deliveries, whose payload has this value in this field.';
revoke all on function pabal.hub_events_about(text, text) from public, anon, authenticated;
grant execute on function pabal.hub_events_about(text, text) to service_role;

create or replace function pabal.hub_dead_letters_about(field text, value text) returns table (id uuid)
language sql stable parallel safe
begin atomic
  select d.id
  from public.dead_letter_queue d
  where d.original_source_service = 'hub' and d.original_payload ->> hub_dead_letters_about.field = hub_dead_letters_about.value;
end;
comment on function pabal.hub_dead_letters_about(text, text) is 'Dead letters of the hub''s events whose payload has this value in this field.';
revoke all on function pabal.hub_dead_letters_about(text, text) from public, anon, authenticated;
grant execute on function pabal.hub_dead_letters_about(text, text) to service_role;

create or replace function pabal.root_events(ids uuid[]) returns table (id uuid, root_id uuid)
language sql stable parallel safe
begin atomic
  select d.id, coalesce(p.origin_id, p.id, d.origin_id, d.id)
  from public.event_queue d
  left join public.event_queue p on p.id = d.parent_id
  where d.id = any(root_events.ids);
end;
comment on function pabal.root_events(uuid[]) is 'The published event of each delivery: its parent, or the event that a replay recreated.';
revoke all on function pabal.root_events(uuid[]) from public, anon, authenticated;
grant execute on function pabal.root_events(uuid[]) to service_role;

create or replace function pabal.delete_hub_events_about(field text, value text) returns bigint
language sql
set search_path = ''
as $$
  with deleted as (
    delete from public.event_queue
    where id in (
      select e.id from public.event_queue e
      where e.source_service = 'hub' and e.payload ->> delete_hub_events_about.field = delete_hub_events_about.value
      order by e.id
      for update
    )
    returning id
  )
  select count(*) from deleted
$$;
comment on function pabal.delete_hub_events_about(text, text) is 'Deletes the events that pabal.hub_events_about() returns; returns how many.';
revoke all on function pabal.delete_hub_events_about(text, text) from public, anon, authenticated;
grant execute on function pabal.delete_hub_events_about(text, text) to service_role;

create or replace function pabal.delete_hub_dead_letters_about(field text, value text) returns bigint
language sql
set search_path = ''
as $$
  with deleted as (
    delete from public.dead_letter_queue d
    where d.original_source_service = 'hub'
      and d.original_payload ->> delete_hub_dead_letters_about.field = delete_hub_dead_letters_about.value
    returning d.id
  )
  select count(*) from deleted
$$;
comment on function pabal.delete_hub_dead_letters_about(text, text) is 'Deletes the dead letters that pabal.hub_dead_letters_about() returns; returns how many.';
revoke all on function pabal.delete_hub_dead_letters_about(text, text) from public, anon, authenticated;
grant execute on function pabal.delete_hub_dead_letters_about(text, text) to service_role;

-- Long transactions ----------------------------------------------------------------------------------------------------

-- created_at is the start of the transaction. A reader that follows events by time asks which transactions have been open
-- for long, and reads again from their start when they have ended. security definer: other roles' transactions are hidden.
create or replace function pabal.long_transactions(longer interval) returns timestamptz[]
language sql stable
security definer
set search_path = ''
as $$
  select coalesce(array_agg(a.xact_start order by a.xact_start), '{}')
  from pg_catalog.pg_stat_activity a
  where a.datname = current_database() and a.pid <> pg_backend_pid() and a.xact_start < clock_timestamp() - longer
$$;
comment on function pabal.long_transactions(interval) is 'Start times of the transactions of this database that have been open for longer than this.';
revoke all on function pabal.long_transactions(interval) from public, anon, authenticated;
grant execute on function pabal.long_transactions(interval) to service_role;

-- Sample events --------------------------------------------------------------------------------------------------------
-- They were inserted before the triggers above existed.

insert into pabal.event_order (service, ordering_key, seq, id)
select target_service, ordering_key, seq, id
from public.event_queue
where status = 'pending' and target_service is not null and ordering_key is not null
on conflict (id) do nothing;

insert into pabal.event_due (id, service, priority, due_at, seq, ordering_key, expires_at, is_retry, event_type)
select e.id, e.target_service, e.priority, coalesce(e.next_retry_at, pabal.now()), e.seq, e.ordering_key, e.expires_at,
       e.retry_count > 0, e.event_type
from public.event_queue e
where e.status = 'pending' and e.target_service is not null
  and (e.ordering_key is null or not exists (
    select from pabal.event_order o
    where o.service = e.target_service and o.ordering_key = e.ordering_key and o.seq < e.seq
  ))
on conflict (id) do nothing;
