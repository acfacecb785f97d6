-- Dead letters and deliveries refer to events without foreign keys, which would forbid to detach a partition of the event table.
-- Triggers keep what the foreign keys promised: a reference names an event that exists, and it is set to NULL when the event is
-- deleted.

-- Locked at once, not first by the triggers and then more by the ends of the foreign keys.
lock table public.event_queue, public.dead_letter_queue in access exclusive mode;

create or replace function pabal.raise_unknown_event(event uuid, table_name text, column_name text) returns void
language plpgsql
set search_path = ''
as $$
begin
  raise exception '%: no such event: %', column_name, event
    using errcode = 'foreign_key_violation', schema = 'public', table = table_name, column = column_name,
          constraint = table_name || '_' || column_name || '_fkey';
end
$$;
comment on function pabal.raise_unknown_event(uuid, text, text) is 'Raises the error of a foreign key from this column to public.event_queue.';
revoke all on function pabal.raise_unknown_event(uuid, text, text) from public, anon, authenticated;

-- Parents ----------------------------------------------------------------------------------------------------------------

create or replace function pabal.lock_parent_events(parents uuid[]) returns void
language plpgsql
set search_path = ''
as $$
declare
  locked uuid[] := array(select e.id from public.event_queue e where e.id = any(parents) order by e.id for key share);
begin
  -- Locked until the commit: a parent that is deleted at the same time would leave its new deliveries behind.
  if cardinality(locked) < cardinality(parents) then
    perform pabal.raise_unknown_event(p, 'event_queue', 'parent_id') from unnest(parents) p where p <> all(locked);
  end if;
end
$$;
comment on function pabal.lock_parent_events(uuid[]) is 'Locks the broadcasts of new deliveries; raises an error if one does not exist.';
revoke all on function pabal.lock_parent_events(uuid[]) from public, anon, authenticated;

create or replace function pabal.check_event_parent() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  perform pabal.lock_parent_events(array[new.parent_id]);
  return null;
end
$$;
comment on function pabal.check_event_parent() is 'Raises an error if an updated event names a parent that does not exist.';
revoke all on function pabal.check_event_parent() from public, anon, authenticated;

drop trigger if exists event_queue_check_parent on public.event_queue;
create trigger event_queue_check_parent
  after update of parent_id on public.event_queue
  for each row
  when (new.parent_id is distinct from old.parent_id and new.parent_id is not null)
  execute function pabal.check_event_parent();

create or replace function pabal.keep_event_id() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  raise exception 'id: the id of an event does not change, because other rows refer to it'
    using errcode = 'foreign_key_violation', schema = 'public', table = 'event_queue', column = 'id', constraint = 'event_id_is_kept';
end
$$;
comment on function pabal.keep_event_id() is 'Refuses to change the id of an event.';
revoke all on function pabal.keep_event_id() from public, anon, authenticated;

drop trigger if exists event_queue_keep_id on public.event_queue;
create trigger event_queue_keep_id
  before update of id on public.event_queue
  for each row
  when (new.id <> old.id)
  execute function pabal.keep_event_id();

-- Dead letters ---------------------------------------------------------------------------------------------------------

create or replace function pabal.check_dead_letter_event() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  perform from public.event_queue e where e.id = new.event_id for key share;
  if not found then
    perform pabal.raise_unknown_event(new.event_id, 'dead_letter_queue', 'event_id');
  end if;
  return null;
end
$$;
comment on function pabal.check_dead_letter_event() is 'Raises an error if a dead letter names an event that does not exist, and keeps the event until the commit.';
revoke all on function pabal.check_dead_letter_event() from public, anon, authenticated;

drop trigger if exists dead_letter_queue_check_event on public.dead_letter_queue;
create trigger dead_letter_queue_check_event
  after insert on public.dead_letter_queue
  for each row
  when (new.event_id is not null)
  execute function pabal.check_dead_letter_event();
drop trigger if exists dead_letter_queue_check_changed_event on public.dead_letter_queue;
create trigger dead_letter_queue_check_changed_event
  after update of event_id on public.dead_letter_queue
  for each row
  when (new.event_id is distinct from old.event_id and new.event_id is not null)
  execute function pabal.check_dead_letter_event();

-- Events ---------------------------------------------------------------------------------------------------------------

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
  has_parent boolean;
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
         bool_or(g.has_parent),
         min(g.source_service) filter (where not exists (select from public.services s where s.name = g.source_service)),
         min(g.target_service) filter (where not exists (select from public.services s where s.name = g.target_service))
  into has_ordered, has_broadcast, has_targeted, has_keyed, has_parent, unknown_source, unknown_target
  from (
    select i.source_service, i.target_service, bool_or(i.ordering_key is not null) as has_ordered,
           bool_or(i.parent_id is null and i.is_broadcast) as has_broadcast,
           bool_or(i.parent_id is null and i.status = 'pending') as has_targeted,
           bool_or(i.idempotency_key is not null) as has_keyed, bool_or(i.parent_id is not null) as has_parent
    from inserted i
    group by i.source_service, i.target_service
  ) g;
  if unknown_source is not null then
    perform pabal.raise_unknown_service(unknown_source, 'source_service');
  elsif unknown_target is not null then
    perform pabal.raise_unknown_service(unknown_target, 'target_service');
  end if;

  if has_parent then
    perform pabal.lock_parent_events(array(select distinct i.parent_id from inserted i where i.parent_id is not null));
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

create or replace function pabal.release_deleted_events() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
declare
  ids uuid[] := array(select d.id from deleted d order by d.id);
begin
  -- By arrays: one index probe for each event, whatever the planner expects of the number of rows.
  update public.dead_letter_queue l set event_id = null where l.event_id = any(ids);
  update public.event_queue e set parent_id = null where e.parent_id = any(ids);
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

create or replace function pabal.release_truncated_events() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  update public.dead_letter_queue l set event_id = null where l.event_id is not null;
  delete from pabal.event_keys;  -- not truncate, which fails if the statement names the table too
  delete from pabal.event_due;
  delete from pabal.event_leases;
  delete from pabal.event_order;
  delete from pabal.event_fan_outs;
  delete from pabal.plain_claims;
  return null;
end
$$;

alter table public.event_queue drop constraint if exists event_queue_parent_id_fkey;
alter table public.dead_letter_queue drop constraint if exists dead_letter_queue_event_id_fkey;
