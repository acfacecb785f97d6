-- Shorter roads through the event lane: whoever takes only some types finds those without reading the others, and whoever
-- reads their events finds them without reading everybody else's.

-- By type ----------------------------------------------------------------------------------------------------------------
-- In the order of bytes, so that the types of one beginning stand together. A hub of the day before, still at work while
-- this is applied, does not know the column: its rows have no type until the lane is mended, and wait no longer than that.

alter table pabal.event_due add column if not exists event_type text collate "C" not null default '';
comment on column pabal.event_due.event_type is 'Copied from the event: a claim may be for some types only.';

create or replace function pabal.events_arrive() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  insert into pabal.event_lines (service, ordering_key, seq, id)
  select a.target_service, a.ordering_key, a.seq, a.id
  from arrived a
  where a.status = 'pending' and a.target_service is not null and a.ordering_key is not null;

  insert into pabal.event_due (id, service, priority, due_at, seq, ordering_key, expires_at, is_retry, event_type)
  select a.id, a.target_service, a.priority, coalesce(a.next_retry_at, pabal.now()), a.seq, a.ordering_key, a.expires_at, a.retry_count > 0,
         a.event_type
  from arrived a
  where a.status = 'pending' and a.target_service is not null
    and (
      a.ordering_key is null
      or a.seq = (  -- written so that it is one step in the key's index, however long the line
        select l.seq from pabal.event_lines l
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

create or replace function pabal.event_moves() returns trigger
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
    insert into pabal.event_lines (service, ordering_key, seq, id)
    values (new.target_service, new.ordering_key, new.seq, new.id)
    on conflict (id) do update set service = excluded.service, lease = null;
  end if;
  if new.status = 'pending' and new.target_service is not null then
    insert into pabal.event_due (id, service, priority, due_at, seq, ordering_key, expires_at, is_retry, event_type)
    select new.id, new.target_service, new.priority, coalesce(new.next_retry_at, pabal.now()), new.seq, new.ordering_key,
           new.expires_at, new.retry_count > 0, new.event_type
    where new.ordering_key is null
      or new.seq = (
        select l.seq from pabal.event_lines l
        where l.service = new.target_service and l.ordering_key = new.ordering_key
        order by l.seq
        limit 1
      );
  end if;
  return new;
end
$$;

drop trigger if exists event_queue_moves on public.event_queue;
create trigger event_queue_moves
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
      or new.event_type <> old.event_type
    )
  )
  execute function pabal.event_moves();

create or replace function pabal.call_event(event uuid) returns void
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
    update pabal.event_lines set is_sure = false where id = event;
  elsif called.status = 'pending' then
    insert into pabal.event_due (id, service, priority, due_at, seq, ordering_key, expires_at, is_retry, event_type)
    values (called.id, called.target_service, called.priority, coalesce(called.next_retry_at, pabal.now()), called.seq,
            called.ordering_key, called.expires_at, called.retry_count > 0, called.event_type)
    on conflict (id) do nothing;
  end if;
end
$$;

-- What waits already.
update pabal.event_due d
set event_type = e.event_type
from public.event_queue e
where e.id = d.id;

create index if not exists event_due_by_type on pabal.event_due (service, event_type, priority, due_at);

-- Both functions are plain queries without a search path of their own, so that the planner puts them into the claim; what
-- their names mean is decided here.

create or replace function pabal.event_heads(service text, patterns text[])
returns table (event_type text, priority smallint, due_at timestamptz)
language sql stable parallel safe
begin atomic
  -- Of every priority, for who takes all types.
  select null, head.priority, head.due_at
  from unnest('{1,2,3,4,5,6,7,8,9,10}'::smallint[]) as p (priority)
  cross join lateral (
    select d.priority, d.due_at
    from pabal.event_due d
    where d.service = event_heads.service and d.priority = p.priority and d.due_at <= pabal.now()
    order by d.due_at
    limit 1
  ) head
  where event_heads.patterns is null
  union
  -- Of every type and priority, from the pattern's beginning on: one step in the index each, however many rows wait.
  select head.event_type, head.priority, head.due_at
  from unnest(event_heads.patterns) as p (pattern)
  cross join lateral (
    with recursive head as (
      (
        select d.event_type, d.priority, d.due_at
        from pabal.event_due d
        where d.service = event_heads.service and d.event_type >= replace(split_part(p.pattern, '%', 1), '\_', '_')
        order by d.event_type, d.priority, d.due_at
        limit 1
      )
      union all
      select next.event_type, next.priority, next.due_at
      from head
      cross join lateral (
        select d.event_type, d.priority, d.due_at
        from pabal.event_due d
        where d.service = event_heads.service and (d.event_type, d.priority) > (head.event_type, head.priority)
        order by d.event_type, d.priority, d.due_at
        limit 1
      ) next
      where starts_with(head.event_type, replace(split_part(p.pattern, '%', 1), '\_', '_'))
    )
    select * from head
  ) head
  where head.event_type like p.pattern and head.due_at <= pabal.now()
  order by 2, 3;
end;
comment on function pabal.event_heads(text, text[]) is 'Where a service''s due events begin: the first of each priority, or of each type that fits a pattern and each priority.';
revoke all on function pabal.event_heads(text, text[]) from public, anon, authenticated;
grant execute on function pabal.event_heads(text, text[]) to service_role;

create or replace function pabal.event_road(service text, event_type text, priority smallint, since timestamptz, most bigint)
returns table (place tid, due_at timestamptz)
language sql stable parallel safe
begin atomic
  (
    select d.ctid, d.due_at
    from pabal.event_due d
    where event_road.event_type is null and d.service = event_road.service and d.priority = event_road.priority
      and d.due_at >= event_road.since and d.due_at <= pabal.now()
    order by d.due_at
    limit event_road.most
  )
  union all
  (
    -- In the words of its index, or a plan made on an empty table takes the other one and steps over every other type. (The
    -- type alone says nothing new, except to a planner without statistics: that these are few, and best read in order.)
    select d.ctid, d.due_at
    from pabal.event_due d
    where d.service = event_road.service and d.event_type = event_road.event_type
      and (d.event_type, d.priority, d.due_at) >= (event_road.event_type, event_road.priority, event_road.since)
      and (d.event_type, d.priority, d.due_at) <= (event_road.event_type, event_road.priority, pabal.now())
    order by d.event_type, d.priority, d.due_at
    limit event_road.most
  );
end;
comment on function pabal.event_road(text, text, smallint, timestamptz, bigint) is 'The due events from one head on, the longest due first.';
revoke all on function pabal.event_road(text, text, smallint, timestamptz, bigint) from public, anon, authenticated;
grant execute on function pabal.event_road(text, text, smallint, timestamptz, bigint) to service_role;

-- By whom ----------------------------------------------------------------------------------------------------------------
-- The seed's two indexes, each with the order a service reads its events in. None of the columns ever moves. Without the id,
-- which decides between events of one transaction, a plan for any limit would rather sort all of a service's events.

drop index if exists public.idx_event_queue_source_service;
create index if not exists idx_event_queue_source_service on public.event_queue (source_service, created_at, id);
drop index if exists public.idx_event_queue_target_service;
create index if not exists idx_event_queue_target_service on public.event_queue (target_service, created_at, id)
  where target_service is not null;
