-- Rights between services: permissions for people and for the hub's events, the event types that only the hub publishes,
-- and the event types that a service may publish and receive.

-- Permissions ----------------------------------------------------------------------------------------------------------

create or replace function pabal.known_permissions(permissions jsonb) returns boolean
language sql immutable parallel safe
as $$
  select jsonb_typeof(permissions) = 'array'
     and permissions <@ '[
           "read", "write",
           "events:publish", "events:consume", "events:read",
           "notifications:send", "notifications:read",
           "people:token", "people:write",
           "tokens:introspect", "tokens:admin", "hub:events", "hub:admin"
         ]'::jsonb
$$;
comment on function pabal.known_permissions(jsonb) is 'Whether this is an array of known permissions or of their groups, read and write.';
revoke all on function pabal.known_permissions(jsonb) from public, anon, authenticated;
grant execute on function pabal.known_permissions(jsonb) to service_role;

-- Event types ----------------------------------------------------------------------------------------------------------

create or replace function pabal.hub_event_types() returns text[]
language sql immutable parallel safe
return array[
  'pabal.test',
  'relay.callback.failed',
  'relay.message.received',
  'relay.pairing.verified',
  'security.token_reuse',
  'token.issued'
];
comment on function pabal.hub_event_types() is 'Event types that only the hub publishes. A service receives them only with the permission hub:events.';
revoke all on function pabal.hub_event_types() from public, anon, authenticated;
grant execute on function pabal.hub_event_types() to service_role;

-- The generated columns are what a statement compares with: LIKE patterns, and one boolean instead of a search in jsonb.
alter table public.services
  add column if not exists may_publish text[],
  add column if not exists may_subscribe text[],
  add column if not exists publish_patterns text[] generated always as (pabal.like_patterns(may_publish)) stored,
  add column if not exists subscribe_patterns text[] generated always as (pabal.like_patterns(may_subscribe)) stored,
  add column if not exists receives_hub_events boolean not null
    generated always as (name = 'hub' or permissions ? 'hub:events') stored;
alter table public.services
  drop constraint if exists service_may_publish_form,
  drop constraint if exists service_may_subscribe_form,
  add constraint service_may_publish_form check (pabal.are_event_patterns(may_publish)),
  add constraint service_may_subscribe_form check (pabal.are_event_patterns(may_subscribe));
comment on column public.services.may_publish is 'Event types it may publish, in which * matches anything; NULL means all but the hub''s.';
comment on column public.services.may_subscribe is 'Event types its subscriptions may receive, in which * matches anything; NULL means all. The hub''s need the permission hub:events as well.';
comment on column public.services.publish_patterns is 'may_publish as LIKE patterns.';
comment on column public.services.subscribe_patterns is 'may_subscribe as LIKE patterns.';
comment on column public.services.receives_hub_events is 'Whether its subscriptions may receive the event types of pabal.hub_event_types().';

-- Matching -------------------------------------------------------------------------------------------------------------

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
