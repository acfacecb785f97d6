-- Events name services that exist, without a lock for each event. The foreign keys locked the rows of the source and the target
-- for every event: a third of the cost of a publish, and a multixact whenever two publishers met. A service whose name can never
-- vanish needs no lock, so registered services are kept: they are disabled, not deleted or renamed.

create or replace function pabal.keep_service() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  raise exception 'services are not deleted or renamed, because events keep their names'
    using errcode = 'foreign_key_violation', schema = 'public', table = 'services', constraint = 'services_are_kept',
          hint = 'Run: pabal service disable NAME';
end
$$;
comment on function pabal.keep_service() is 'Refuses to delete or rename a service.';
revoke all on function pabal.keep_service() from public, anon, authenticated;

drop trigger if exists services_keep on public.services;
create trigger services_keep
  before delete on public.services
  for each row execute function pabal.keep_service();
drop trigger if exists services_keep_name on public.services;
create trigger services_keep_name
  before update on public.services
  for each row
  when (new.name <> old.name)
  execute function pabal.keep_service();
drop trigger if exists services_keep_all on public.services;
create trigger services_keep_all
  before truncate on public.services
  for each statement execute function pabal.keep_service();

create or replace function pabal.raise_unknown_service(service text, field text) returns void
language plpgsql
set search_path = ''
as $$
begin
  raise exception '%: no such service: %', field, service
    using errcode = 'foreign_key_violation', schema = 'public', table = 'event_queue', column = field,
          constraint = 'valid_' || field;
end
$$;
comment on function pabal.raise_unknown_service(text, text) is 'Raises the error of a foreign key from this column of public.event_queue to public.services.';
revoke all on function pabal.raise_unknown_service(text, text) from public, anon, authenticated;

create or replace function pabal.check_event_services() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  if not exists (select from public.services s where s.name = new.source_service) then
    perform pabal.raise_unknown_service(new.source_service, 'source_service');
  elsif new.target_service is not null
        and not exists (select from public.services s where s.name = new.target_service) then
    perform pabal.raise_unknown_service(new.target_service, 'target_service');
  end if;
  return new;
end
$$;
comment on function pabal.check_event_services() is 'Raises an error if an updated event names a service that does not exist.';
revoke all on function pabal.check_event_services() from public, anon, authenticated;

drop trigger if exists event_queue_check_services on public.event_queue;
create trigger event_queue_check_services
  before update of source_service, target_service on public.event_queue
  for each row
  when (new.source_service <> old.source_service or new.target_service is distinct from old.target_service)
  execute function pabal.check_event_services();

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

alter table public.event_queue
  drop constraint if exists valid_source_service,
  drop constraint if exists valid_target_service;
