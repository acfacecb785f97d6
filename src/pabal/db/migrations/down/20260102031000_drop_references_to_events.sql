-- Back to foreign keys.

lock table public.event_queue, public.dead_letter_queue in access exclusive mode;

-- A deletion at repeatable read leaves references that are newer than its snapshot.
update public.event_queue e
set parent_id = null
where e.parent_id is not null and not exists (select from public.event_queue p where p.id = e.parent_id);
update public.dead_letter_queue l
set event_id = null
where l.event_id is not null and not exists (select from public.event_queue e where e.id = l.event_id);
alter table public.event_queue
  add constraint event_queue_parent_id_fkey foreign key (parent_id) references public.event_queue (id) on delete set null;
alter table public.dead_letter_queue
  add constraint dead_letter_queue_event_id_fkey foreign key (event_id) references public.event_queue (id) on delete set null;

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

drop trigger if exists event_queue_check_parent on public.event_queue;
drop trigger if exists event_queue_keep_id on public.event_queue;
drop trigger if exists dead_letter_queue_check_event on public.dead_letter_queue;
drop trigger if exists dead_letter_queue_check_changed_event on public.dead_letter_queue;
drop function if exists pabal.check_event_parent();
drop function if exists pabal.keep_event_id();
drop function if exists pabal.check_dead_letter_event();
drop function if exists pabal.lock_parent_events(uuid[]);
drop function if exists pabal.raise_unknown_event(uuid, text, text);
