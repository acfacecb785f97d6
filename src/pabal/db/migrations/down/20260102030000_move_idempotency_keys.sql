-- Back to keys in the event table. An expired key is cleared: it may have been used again.

lock table public.event_queue in access exclusive mode;

drop trigger if exists event_queue_move_key on public.event_queue;
drop trigger if exists event_queue_release_deleted on public.event_queue;
drop trigger if exists event_queue_release_truncated on public.event_queue;
drop function if exists pabal.move_event_key();
drop function if exists pabal.release_deleted_events();
drop function if exists pabal.release_truncated_events();

alter table public.event_queue add column if not exists content_hash bytea;
comment on column public.event_queue.content_hash is 'Hash of the content published under the key; other content with the same key is refused.';
comment on column public.event_queue.idempotency_key is 'Key chosen by the publisher; unique per source for as long as it is kept.';

update public.event_queue e
set content_hash = k.content_hash
from pabal.event_keys k
where e.id = k.event_id and k.created_at > pabal.event_key_cutoff();

update public.event_queue e
set idempotency_key = null
where e.idempotency_key is not null
  and not exists (select from pabal.event_keys k where k.event_id = e.id and k.created_at > pabal.event_key_cutoff());

create unique index if not exists idx_event_queue_idempotency_key
  on public.event_queue (source_service, idempotency_key)
  where idempotency_key is not null;
create index if not exists idx_event_queue_keyed on public.event_queue (created_at) where idempotency_key is not null;

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
  event_id uuid;
  is_same boolean;
begin
  perform pabal.check_publish_right(acting_service, publish.event_type);
  if octet_length(publish.payload::text) > 262144 then
    raise exception 'payload: is larger than 262144 bytes' using errcode = 'program_limit_exceeded';
  end if;
  loop  -- between the two statements the first event of a key may be deleted or lose its key
    insert into public.event_queue (
      id, event_type, source_service, target_service, payload, priority, max_retries, next_retry_at, expires_at,
      idempotency_key, content_hash, ordering_key, correlation_id, traceparent
    ) values (
      pabal.uuid7(), publish.event_type, acting_service, publish.target, publish.payload, publish.priority,
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
    where e.source_service = acting_service and e.idempotency_key = publish.idempotency_key;
    if is_same then
      return event_id;
    elsif event_id is not null then
      raise exception 'idempotency_key: was used for another event (%)', event_id using errcode = 'unique_violation';
    end if;
  end loop;
end
$$;

create or replace function pabal.enqueue_inserted_events() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
declare
  has_ordered boolean;
  has_broadcast boolean;
  has_targeted boolean;
  unknown_source text;
  unknown_target text;
  subscribers record;
  fan_outs bigint := 0;
begin
  -- One pass tells which of the statements below have something to do; each costs more than this on a single event. It also
  -- finds names of services that do not exist. No lock is needed: a registered service is never deleted.
  -- Deliveries fire this trigger too, and so does an insert of no rows; neither has anything to deliver.
  select bool_or(g.has_ordered), bool_or(g.has_broadcast), bool_or(g.has_targeted),
         min(g.source_service) filter (where not exists (select from public.services s where s.name = g.source_service)),
         min(g.target_service) filter (where not exists (select from public.services s where s.name = g.target_service))
  into has_ordered, has_broadcast, has_targeted, unknown_source, unknown_target
  from (
    select i.source_service, i.target_service, bool_or(i.ordering_key is not null) as has_ordered,
           bool_or(i.parent_id is null and i.is_broadcast) as has_broadcast,
           bool_or(i.parent_id is null and i.status = 'pending') as has_targeted
    from inserted i
    group by i.source_service, i.target_service
  ) g;
  if unknown_source is not null then
    perform pabal.raise_unknown_service(unknown_source, 'source_service');
  elsif unknown_target is not null then
    perform pabal.raise_unknown_service(unknown_target, 'target_service');
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

drop table if exists pabal.event_keys;
drop function if exists pabal.event_key_cutoff();
