-- Back to scanning all subscriptions for every event.

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
  -- The rights of a service are checked here and not only when it subscribes, so that a change of them applies to the
  -- subscriptions that it already has. They are checked on the matches: inside the lateral subquery they would be checked
  -- for every service, and the hash table of services would be built again for every event.
  if exists (select from inserted i where i.parent_id is null) and exists (select from pabal.subscriptions) then
    insert into public.event_queue (
      id, event_type, source_service, target_service, payload, max_retries, next_retry_at, priority,
      parent_id, ordering_key, expires_at, correlation_id, traceparent
    )
    select pabal.uuid7(), i.event_type, i.source_service, r.service_name, i.payload, i.max_retries, i.next_retry_at, i.priority,
           i.id, i.ordering_key, i.expires_at, coalesce(i.correlation_id, i.id::text), i.traceparent
    from inserted i
    cross join lateral (
      select distinct on (s.service_name) s.service_name, v.receives_hub_events, v.subscribe_patterns
      from pabal.subscriptions s
      join public.services v on v.name = s.service_name and v.is_active
      where s.disabled_at is null
        and i.event_type like any (s.patterns)
        and (s.mode = 'rule' or (i.is_broadcast and s.service_name <> i.source_service))
    ) r
    where i.parent_id is null and (i.is_broadcast or i.status = 'pending')
      and (r.receives_hub_events or i.event_type <> all (pabal.hub_event_types()))
      and (r.subscribe_patterns is null or i.event_type like any (r.subscribe_patterns))
    order by i.seq, r.service_name;
  end if;
  return null;
end
$$;

create or replace function pabal.emit_events(event_type text, payloads jsonb[]) returns bigint
language plpgsql
set search_path = ''
as $$
declare
  inserted bigint := 0;
begin
  -- Without a subscriber a broadcast ends as it begins: on a hot path the rows are not worth writing.
  if cardinality(emit_events.payloads) > 0 and exists (
    select
    from pabal.subscriptions s
    join public.services v on v.name = s.service_name and v.receives_hub_events
    where s.disabled_at is null and emit_events.event_type like any (s.patterns)
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

drop function if exists pabal.matching_subscribers(text, boolean);
drop function if exists pabal.event_type_anchors(text);
drop trigger if exists subscriptions_index_updated on pabal.subscriptions;
drop trigger if exists subscriptions_index_inserted on pabal.subscriptions;
drop function if exists pabal.index_subscription();
drop table if exists pabal.subscription_patterns;
drop function if exists pabal.pattern_anchor(text);
