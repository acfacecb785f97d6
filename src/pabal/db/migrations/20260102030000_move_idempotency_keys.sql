-- Idempotency keys leave the wide event table: one narrow row each, kept for a day. Two indexes of public.event_queue were
-- written for every keyed event, and clearing a key a day later wrote the whole row and all its indexes again.

-- Between the copy of the keys and the end of the unique index, no event may be published. Locked as the last statement needs it:
-- a transaction that has read the table and then publishes would wait for a weaker lock, and the migration for it.
lock table public.event_queue in access exclusive mode;

create table if not exists pabal.event_keys (
  created_at timestamptz not null default pabal.now(),
  event_id uuid not null,
  source_service text collate "C" not null,
  idempotency_key text collate "C" not null,
  content_hash bytea,
  constraint event_key_form check (length(idempotency_key) between 1 and 255)
) with (
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 1
);
comment on table pabal.event_keys is 'Idempotency keys of the events published within the last 24 hours.';
comment on column pabal.event_keys.created_at is 'When the key was used.';
comment on column pabal.event_keys.event_id is 'The event that was published with the key.';
comment on column pabal.event_keys.source_service is 'The publisher.';
comment on column pabal.event_keys.idempotency_key is 'The key. Collated by bytes, which is cheaper to compare and to sort.';
comment on column pabal.event_keys.content_hash is 'Hash of the content published under the key; other content with the same key is refused. NULL for plain inserts.';

alter table pabal.event_keys enable row level security;
drop policy if exists "event_keys_service_role_all" on pabal.event_keys;
create policy "event_keys_service_role_all" on pabal.event_keys for all to service_role using (true) with check (true);
revoke all on table pabal.event_keys from public, anon, authenticated;
grant select, insert, update, delete on table pabal.event_keys to service_role;

-- A SQL body without a search path is inlined.
create or replace function pabal.event_key_cutoff() returns timestamptz
language sql stable parallel safe
return pabal.now() - interval '24 hours';
comment on function pabal.event_key_cutoff() is 'Idempotency keys that were used at this time or before have expired.';
revoke all on function pabal.event_key_cutoff() from public, anon, authenticated;
grant execute on function pabal.event_key_cutoff() to service_role;

insert into pabal.event_keys (created_at, event_id, source_service, idempotency_key, content_hash)
select e.created_at, e.id, e.source_service, e.idempotency_key, e.content_hash
from public.event_queue e
where e.idempotency_key is not null and e.created_at > pabal.event_key_cutoff();

-- The name is part of the error that a plain insert of a used key gets.
create unique index if not exists idx_event_queue_idempotency_key on pabal.event_keys (source_service, idempotency_key);
comment on index pabal.idx_event_queue_idempotency_key is 'One event per idempotency key and source. An expired key that was not deleted yet is replaced.';
-- The chore that deletes expired keys.
create index if not exists event_keys_created_at on pabal.event_keys (created_at);

drop index if exists public.idx_event_queue_idempotency_key;
drop index if exists public.idx_event_queue_keyed;
alter table public.event_queue drop column if exists content_hash;
comment on column public.event_queue.idempotency_key is 'Key chosen by the publisher; unique per source for 24 hours, by pabal.event_keys.';

-- Insert ---------------------------------------------------------------------------------------------------------------

create or replace function pabal.enqueue_inserted_events() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
declare
  has_ordered boolean;
  has_broadcast boolean;
  has_targeted boolean;
  has_keyed boolean;
  unrecorded record;
  unknown_source text;
  unknown_target text;
  subscribers record;
  fan_outs bigint := 0;
begin
  -- One pass tells which of the statements below have something to do; each costs more than this on a single event. It also
  -- finds names of services that do not exist. No lock is needed: a registered service is never deleted.
  -- Deliveries fire this trigger too, and so does an insert of no rows; neither has anything to deliver.
  select bool_or(g.has_ordered), bool_or(g.has_broadcast), bool_or(g.has_targeted), bool_or(g.has_keyed),
         min(g.source_service) filter (where not exists (select from public.services s where s.name = g.source_service)),
         min(g.target_service) filter (where not exists (select from public.services s where s.name = g.target_service))
  into has_ordered, has_broadcast, has_targeted, has_keyed, unknown_source, unknown_target
  from (
    select i.source_service, i.target_service, bool_or(i.ordering_key is not null) as has_ordered,
           bool_or(i.parent_id is null and i.is_broadcast) as has_broadcast,
           bool_or(i.parent_id is null and i.status = 'pending') as has_targeted,
           bool_or(i.idempotency_key is not null) as has_keyed
    from inserted i
    group by i.source_service, i.target_service
  ) g;
  if unknown_source is not null then
    perform pabal.raise_unknown_service(unknown_source, 'source_service');
  elsif unknown_target is not null then
    perform pabal.raise_unknown_service(unknown_target, 'target_service');
  end if;

  if has_keyed then
    -- The hub and pabal.publish have recorded their keys already, a plain insert has not. A key that is in use raises the error
    -- of the unique index. The lateral join with offset is one index probe for each event, whatever the planner expects.
    select array_agg(i.id) as events, array_agg(k.row_ctid) filter (where k.created_at <= pabal.event_key_cutoff()) as expired
    into unrecorded
    from inserted i
    left join lateral (
      select k.ctid as row_ctid, k.event_id, k.created_at
      from pabal.event_keys k
      where k.source_service = i.source_service and k.idempotency_key = i.idempotency_key
      offset 0
    ) k on true
    where i.idempotency_key is not null and k.event_id is distinct from i.id;
    if unrecorded.events is not null then
      -- The time is checked again: older minor versions of PostgreSQL would delete a row that was replaced meanwhile.
      delete from pabal.event_keys k where k.ctid = any(unrecorded.expired) and k.created_at <= pabal.event_key_cutoff();
      insert into pabal.event_keys (source_service, idempotency_key, event_id)
      select i.source_service, i.idempotency_key, i.id
      from inserted i
      where i.id = any(unrecorded.events)
      order by i.source_service collate "C", i.idempotency_key collate "C", i.seq;
    end if;
  end if;

  if has_ordered then
    insert into pabal.event_order (service, ordering_key, seq, id)
    select i.target_service, i.ordering_key, i.seq, i.id
    from inserted i
    where i.status = 'pending' and i.target_service is not null and i.ordering_key is not null;
  end if;

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
  -- Matched once for each type of the statement, not for each event; usually there is no match and nothing to insert.
  if (has_broadcast and exists (select from pabal.subscription_patterns))
     or (has_targeted and exists (select from pabal.subscription_patterns p where p.is_rule)) then
    select array_agg(t.event_type) as event_types, array_agg(m.service_name) as services, array_agg(m.is_rule) as are_rules
    into subscribers
    from (
      select distinct i.event_type from inserted i where i.parent_id is null and (i.is_broadcast or i.status = 'pending')
    ) t
    cross join lateral pabal.matching_subscribers(t.event_type, not has_broadcast) m;
    if cardinality(subscribers.services) > 200 then
      insert into pabal.event_fan_outs (event_id, seq, services)
      select i.id, i.seq, array_agg(r.service_name order by r.service_name)
      from inserted i
      join unnest(subscribers.event_types, subscribers.services, subscribers.are_rules) as r (event_type, service_name, is_rule)
        on r.event_type = i.event_type
      where i.parent_id is null and i.is_broadcast and i.ordering_key is null
        and (r.is_rule or r.service_name <> i.source_service)
      group by i.id, i.seq
      having count(*) > 200;
      get diagnostics fan_outs = row_count;
    end if;
    if subscribers.services is not null then
      insert into public.event_queue (
        id, event_type, source_service, target_service, payload, max_retries, next_retry_at, priority,
        parent_id, ordering_key, expires_at, correlation_id, traceparent
      )
      select pabal.uuid7(), i.event_type, i.source_service, r.service_name, i.payload, i.max_retries, i.next_retry_at,
             i.priority, i.id, i.ordering_key, i.expires_at, coalesce(i.correlation_id, i.id::text), i.traceparent
      from inserted i
      join unnest(subscribers.event_types, subscribers.services, subscribers.are_rules) as r (event_type, service_name, is_rule)
        on r.event_type = i.event_type
      where i.parent_id is null and (i.is_broadcast or i.status = 'pending')
        and (r.is_rule or (i.is_broadcast and r.service_name <> i.source_service))
        and (fan_outs = 0 or not exists (select from pabal.event_fan_outs f where f.event_id = i.id))
      order by i.seq, r.service_name;
    end if;
  end if;
  return null;
end
$$;

-- Update and delete ----------------------------------------------------------------------------------------------------

create or replace function pabal.move_event_key() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  delete from pabal.event_keys k
  where k.source_service = old.source_service and k.idempotency_key = old.idempotency_key and k.event_id = old.id;
  if new.idempotency_key is not null then
    delete from pabal.event_keys k
    where k.source_service = new.source_service and k.idempotency_key = new.idempotency_key
      and k.created_at <= pabal.event_key_cutoff();
    insert into pabal.event_keys (source_service, idempotency_key, event_id)
    values (new.source_service, new.idempotency_key, new.id);
  end if;
  return null;
end
$$;
comment on function pabal.move_event_key() is 'Records the idempotency key of an event after plain SQL has changed it.';
revoke all on function pabal.move_event_key() from public, anon, authenticated;

drop trigger if exists event_queue_move_key on public.event_queue;
create trigger event_queue_move_key
  after update of source_service, idempotency_key on public.event_queue
  for each row
  when (
    new.idempotency_key is distinct from old.idempotency_key
    or (new.source_service <> old.source_service and new.idempotency_key is not null)
  )
  execute function pabal.move_event_key();

create or replace function pabal.release_deleted_events() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  -- The key of a deleted event may be used again. Locked first: a publisher may be replacing it.
  delete from pabal.event_keys k
  where k.ctid = any(array(
    select k.row_ctid
    from deleted d
    cross join lateral (
      select k.ctid as row_ctid
      from pabal.event_keys k
      where k.source_service = d.source_service and k.idempotency_key = d.idempotency_key and k.event_id = d.id
      offset 0
      for update
    ) k
    where d.idempotency_key is not null
  ));
  return null;
end
$$;
comment on function pabal.release_deleted_events() is 'Removes what refers to deleted events.';
revoke all on function pabal.release_deleted_events() from public, anon, authenticated;

drop trigger if exists event_queue_release_deleted on public.event_queue;
create trigger event_queue_release_deleted
  after delete on public.event_queue
  referencing old table as deleted
  for each statement
  execute function pabal.release_deleted_events();

create or replace function pabal.release_truncated_events() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  delete from pabal.event_keys;  -- not truncate, which fails if the statement names the table too
  return null;
end
$$;
comment on function pabal.release_truncated_events() is 'Removes what refers to events after all of them were truncated.';
revoke all on function pabal.release_truncated_events() from public, anon, authenticated;

drop trigger if exists event_queue_release_truncated on public.event_queue;
create trigger event_queue_release_truncated
  after truncate on public.event_queue
  for each statement
  execute function pabal.release_truncated_events();

-- Publish --------------------------------------------------------------------------------------------------------------

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
  acting_service text := pabal.resolve_sql_source(publish.source, 'events:publish');
  hash bytea := case when publish.idempotency_key is not null then pabal.content_hash(
    publish.event_type, publish.target, publish.payload, publish.priority, publish.max_retries,
    publish.deliver_at, publish.expires_at, publish.ordering_key) end;
  event_id uuid := pabal.uuid7();
  first record;
begin
  perform pabal.check_publish_right(acting_service, publish.event_type);
  if octet_length(publish.payload::text) > 262144 then
    raise exception 'payload: is larger than 262144 bytes' using errcode = 'program_limit_exceeded';
  end if;
  if publish.idempotency_key is not null then
    loop  -- until the key is ours or the first event with it is known; a key may expire or be deleted between the statements
      insert into pabal.event_keys (source_service, idempotency_key, event_id, content_hash)
      values (acting_service, publish.idempotency_key, event_id, hash)
      on conflict (source_service, idempotency_key) do nothing;
      exit when found;
      select k.event_id, k.content_hash is not distinct from hash as is_same,
             k.created_at > pabal.event_key_cutoff() and exists (select from public.event_queue e where e.id = k.event_id) as is_live
      into first
      from pabal.event_keys k
      where k.source_service = acting_service and k.idempotency_key = publish.idempotency_key;
      if first.is_live and first.is_same then
        return first.event_id;
      elsif first.is_live then
        raise exception 'idempotency_key: was used for another event (%)', first.event_id using errcode = 'unique_violation';
      end if;
      delete from pabal.event_keys k
      where k.source_service = acting_service and k.idempotency_key = publish.idempotency_key and k.event_id = first.event_id;
    end loop;
  end if;
  insert into public.event_queue (
    id, event_type, source_service, target_service, payload, priority, max_retries, next_retry_at, expires_at,
    idempotency_key, ordering_key, correlation_id, traceparent
  ) values (
    event_id, publish.event_type, acting_service, publish.target, publish.payload, publish.priority, publish.max_retries,
    publish.deliver_at, publish.expires_at, publish.idempotency_key, publish.ordering_key, publish.correlation_id,
    publish.traceparent
  );
  return event_id;
end
$$;
