-- The deliveries of a large broadcast are created by the hub, in slices. 10,000 of them took the publisher's transaction seconds,
-- with all their locks; now it records the receivers, as they are at that time.

create table if not exists pabal.event_fan_outs (
  event_id uuid primary key,
  seq bigint not null,
  services text[] not null,
  expanded integer not null default 0
);
comment on table pabal.event_fan_outs is 'Broadcasts whose deliveries are not all created yet.';
comment on column pabal.event_fan_outs.event_id is 'The broadcast.';
comment on column pabal.event_fan_outs.seq is 'Order of publishing; broadcasts are expanded in it.';
comment on column pabal.event_fan_outs.services is 'The receiving services.';
comment on column pabal.event_fan_outs.expanded is 'How many of them have a delivery, from the first on.';
create index if not exists event_fan_outs_seq on pabal.event_fan_outs (seq);

alter table pabal.event_fan_outs enable row level security;
drop policy if exists "event_fan_outs_service_role_all" on pabal.event_fan_outs;
create policy "event_fan_outs_service_role_all" on pabal.event_fan_outs for all to service_role using (true) with check (true);
revoke all on table pabal.event_fan_outs from public, anon, authenticated;
grant select, insert, update, delete on table pabal.event_fan_outs to service_role;

-- Events with an ordering key are delivered at once, to any number of services: a delivery that is created later would be
-- overtaken by the next event of its key.
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
