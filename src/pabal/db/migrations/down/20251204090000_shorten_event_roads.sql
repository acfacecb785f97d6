drop index if exists public.idx_event_queue_target_service;
create index if not exists idx_event_queue_target_service on public.event_queue (target_service) where target_service is not null;
drop index if exists public.idx_event_queue_source_service;
create index if not exists idx_event_queue_source_service on public.event_queue (source_service);

drop function if exists pabal.event_scan(text, text, smallint, timestamptz, bigint);
drop function if exists pabal.event_first_due(text, text[]);

create or replace function pabal.enqueue_inserted_events() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  insert into pabal.event_order (service, ordering_key, seq, id)
  select a.target_service, a.ordering_key, a.seq, a.id
  from arrived a
  where a.status = 'pending' and a.target_service is not null and a.ordering_key is not null;

  insert into pabal.event_due (id, service, priority, due_at, seq, ordering_key, expires_at, is_retry)
  select a.id, a.target_service, a.priority, coalesce(a.next_retry_at, pabal.now()), a.seq, a.ordering_key, a.expires_at, a.retry_count > 0
  from arrived a
  where a.status = 'pending' and a.target_service is not null
    and (
      a.ordering_key is null
      or a.seq = (  -- written so that it is one step in the key's index, however long the line
        select l.seq from pabal.event_order l
        where l.service = a.target_service and l.ordering_key = a.ordering_key
        order by l.seq
        limit 1
      )
    );

  -- One delivery for each service that wants a broadcast, the publisher excepted; one for the hub's own rules of every
  -- event they match, whoever it is for. In the order of publishing, so that lines keep it.
  -- (Deliveries arrive through here as well, and so does an insert of nothing: both end the round.)
  if exists (select from arrived a where a.parent_id is null) and exists (select from pabal.subscriptions) then
    insert into public.event_queue (
      id, event_type, source_service, target_service, payload, max_retries, next_retry_at, priority,
      parent_id, ordering_key, expires_at, correlation_id, traceparent
    )
    select pabal.uuid7(), a.event_type, a.source_service, w.service_name, a.payload, a.max_retries, a.next_retry_at, a.priority,
           a.id, a.ordering_key, a.expires_at, coalesce(a.correlation_id, a.id::text), a.traceparent
    from arrived a
    cross join lateral (
      select distinct s.service_name
      from pabal.subscriptions s
      join public.services v on v.name = s.service_name and v.is_active
      where s.disabled_at is null
        and a.event_type like any (s.patterns)
        and (s.mode = 'rule' or (a.is_broadcast and s.service_name <> a.source_service))
    ) w
    where a.parent_id is null and (a.is_broadcast or a.status = 'pending')
    order by a.seq, w.service_name;
  end if;
  return null;
end
$$;

create or replace function pabal.sync_event_lane() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  if old.lease is not null then
    if new.status = old.status then
      return new;  -- somebody holds it and goes on holding it; what changed counts when it falls due again
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
    insert into pabal.event_due (id, service, priority, due_at, seq, ordering_key, expires_at, is_retry)
    select new.id, new.target_service, new.priority, coalesce(new.next_retry_at, pabal.now()), new.seq, new.ordering_key,
           new.expires_at, new.retry_count > 0
    where new.ordering_key is null
      or new.seq = (
        select l.seq from pabal.event_order l
        where l.service = new.target_service and l.ordering_key = new.ordering_key
        order by l.seq
        limit 1
      );
  end if;
  return new;
end
$$;

create or replace function pabal.make_event_due(event uuid) returns void
language plpgsql
security definer
set search_path = ''
as $$
declare
  called public.event_queue;
begin
  -- Locked, so that whoever cancels or moves it next sees it among the due. Being changed already, it may be about to
  -- end: then it is not called now but looked at again after the commit.
  select * into called from public.event_queue where id = event for share skip locked;
  if called.id is null then
    update pabal.event_order set is_checked = false where id = event;
  elsif called.status = 'pending' then
    insert into pabal.event_due (id, service, priority, due_at, seq, ordering_key, expires_at, is_retry)
    values (called.id, called.target_service, called.priority, coalesce(called.next_retry_at, pabal.now()), called.seq,
            called.ordering_key, called.expires_at, called.retry_count > 0)
    on conflict (id) do nothing;
  end if;
end
$$;

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
    )
  )
  execute function pabal.sync_event_lane();

alter table pabal.event_due drop column if exists event_type;
