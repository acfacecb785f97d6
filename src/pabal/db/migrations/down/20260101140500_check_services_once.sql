-- Back to foreign keys, which lock the rows of the services.

alter table public.event_queue
  add constraint valid_source_service foreign key (source_service) references public.services (name),
  add constraint valid_target_service foreign key (target_service) references public.services (name);

create or replace function pabal.enqueue_inserted_events() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
declare
  has_ordered boolean;
  has_broadcast boolean;
  has_targeted boolean;
  subscribers record;
begin
  -- One pass tells which of the statements below have something to do; each costs more than this on a single event.
  -- Deliveries fire this trigger too, and so does an insert of no rows; neither has anything to deliver.
  select bool_or(i.ordering_key is not null), bool_or(i.parent_id is null and i.is_broadcast),
         bool_or(i.parent_id is null and i.status = 'pending')
  into has_ordered, has_broadcast, has_targeted
  from inserted i;

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
      order by i.seq, r.service_name;
    end if;
  end if;
  return null;
end
$$;

drop trigger if exists event_queue_check_services on public.event_queue;
drop function if exists pabal.check_event_services();
drop function if exists pabal.raise_unknown_service(text, text);
drop trigger if exists services_keep_all on public.services;
drop trigger if exists services_keep_name on public.services;
drop trigger if exists services_keep on public.services;
drop function if exists pabal.keep_service();
