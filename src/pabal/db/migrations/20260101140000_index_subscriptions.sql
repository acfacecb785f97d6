-- Subscriptions are found by an index. Matching an event costs the same with any number of subscriptions to other types.

-- Anchors --------------------------------------------------------------------------------------------------------------
-- An anchor is a literal that every type matched by a pattern has in the same place: '=' and the whole type if there is no *,
-- '^' and its beginning, '$' and its end reversed, '~' and up to three characters from the middle, or '*' alone. A type has few
-- anchors, and one equality search for each of them returns the patterns that may match.

create or replace function pabal.pattern_anchor(event_type text) returns text
language sql immutable parallel safe
set search_path = ''
as $$
  select case
    when strpos(event_type, '*') = 0 then '=' || event_type
    when p.head <> '' and length(p.head) >= length(p.tail) then '^' || p.head
    when p.tail <> '' then '$' || p.tail
    when p.middle <> '' then '~' || left(p.middle, 3)
    else '*'
  end
  from (
    select split_part(event_type, '*', 1) as head, reverse(split_part(event_type, '*', -1)) as tail,
           (select part from unnest(string_to_array(event_type, '*')) as part order by length(part) desc limit 1) as middle
  ) p
$$;
comment on function pabal.pattern_anchor(text) is 'A literal that every event type matched by this pattern contains in the same place; see pabal.event_type_anchors().';
revoke all on function pabal.pattern_anchor(text) from public, anon, authenticated;
grant execute on function pabal.pattern_anchor(text) to service_role;

create table if not exists pabal.subscription_patterns (
  subscription_id uuid not null references pabal.subscriptions (id) on update cascade on delete cascade,
  pattern text not null,
  anchor text collate "C" not null,
  service_name text not null,
  is_rule boolean not null,
  primary key (subscription_id, pattern)
);
comment on table pabal.subscription_patterns is 'The patterns of the enabled subscriptions, one row each. Kept by a trigger of pabal.subscriptions.';
comment on column pabal.subscription_patterns.subscription_id is 'The subscription.';
comment on column pabal.subscription_patterns.pattern is 'LIKE pattern of the event types.';
comment on column pabal.subscription_patterns.anchor is 'Where the pattern is found; see pabal.pattern_anchor().';
comment on column pabal.subscription_patterns.service_name is 'The receiving service.';
comment on column pabal.subscription_patterns.is_rule is 'Whether a notification rule subscribes: it receives targeted events too.';
create index if not exists subscription_patterns_anchor on pabal.subscription_patterns (anchor);
-- A targeted event concerns rules only, and most installations have none.
create index if not exists subscription_patterns_rules on pabal.subscription_patterns (anchor) where is_rule;

alter table pabal.subscription_patterns enable row level security;
drop policy if exists "subscription_patterns_service_role_all" on pabal.subscription_patterns;
create policy "subscription_patterns_service_role_all" on pabal.subscription_patterns for all to service_role using (true) with check (true);
revoke all on table pabal.subscription_patterns from public, anon, authenticated;
grant select, insert, update, delete on table pabal.subscription_patterns to service_role;

create or replace function pabal.index_subscription() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  if tg_op = 'UPDATE' then
    delete from pabal.subscription_patterns where subscription_id in (old.id, new.id);
  end if;
  if new.disabled_at is null then
    insert into pabal.subscription_patterns (subscription_id, pattern, anchor, service_name, is_rule)
    select distinct new.id, p.pattern, pabal.pattern_anchor(p.event_type), new.service_name, new.mode = 'rule'
    from unnest(new.event_types, new.patterns) as p (event_type, pattern);
  end if;
  return null;
end
$$;
comment on function pabal.index_subscription() is 'Writes the patterns of a subscription to pabal.subscription_patterns.';
revoke all on function pabal.index_subscription() from public, anon, authenticated;

drop trigger if exists subscriptions_index_inserted on pabal.subscriptions;
create trigger subscriptions_index_inserted
  after insert on pabal.subscriptions
  for each row execute function pabal.index_subscription();
drop trigger if exists subscriptions_index_updated on pabal.subscriptions;
create trigger subscriptions_index_updated
  after update on pabal.subscriptions
  for each row
  when (
    new.id <> old.id
    or new.service_name <> old.service_name
    or new.mode <> old.mode
    or new.event_types <> old.event_types
    or (new.disabled_at is null) <> (old.disabled_at is null)
  )
  execute function pabal.index_subscription();

insert into pabal.subscription_patterns (subscription_id, pattern, anchor, service_name, is_rule)
select distinct s.id, p.pattern, pabal.pattern_anchor(p.event_type), s.service_name, s.mode = 'rule'
from pabal.subscriptions s
cross join lateral unnest(s.event_types, s.patterns) as p (event_type, pattern)
where s.disabled_at is null
on conflict do nothing;

-- Matching -------------------------------------------------------------------------------------------------------------

-- Most installations use one or two kinds of pattern. The anchors of a kind without patterns are left out: the first anchor from
-- a kind's sign on begins with another sign. (`exists` with a range could become a scan of the table, and generate_series up to
-- a variable would be planned again at every call.)
create or replace function pabal.event_type_anchors(event_type text) returns text[]
language plpgsql stable parallel safe
set search_path = ''
as $$
declare
  anchors text[] := array['*', '=' || event_type];
  reversed text;
begin
  if (select p.anchor from pabal.subscription_patterns p where p.anchor >= '^' order by p.anchor limit 1) < '_' then
    for size in 1 .. length(event_type) loop
      anchors := anchors || ('^' || left(event_type, size));
    end loop;
  end if;
  if (select p.anchor from pabal.subscription_patterns p where p.anchor >= '$' order by p.anchor limit 1) < '%' then
    reversed := reverse(event_type);
    for size in 1 .. length(event_type) loop
      anchors := anchors || ('$' || left(reversed, size));
    end loop;
  end if;
  if (select p.anchor from pabal.subscription_patterns p where p.anchor >= '~' order by p.anchor limit 1) <> '' then
    for start in 1 .. length(event_type) loop
      for size in 1 .. least(3, length(event_type) - start + 1) loop
        anchors := anchors || ('~' || substr(event_type, start, size));
      end loop;
    end loop;
  end if;
  return anchors;
end
$$;
comment on function pabal.event_type_anchors(text) is 'The anchors of all patterns that may match this event type; see pabal.pattern_anchor().';
revoke all on function pabal.event_type_anchors(text) from public, anon, authenticated;
grant execute on function pabal.event_type_anchors(text) to service_role;

-- The rights of a service are checked here and not only when it subscribes, so that a change of them applies to the
-- subscriptions that it already has. Inlined into the statements that call it.
create or replace function pabal.matching_subscribers(event_type text, only_rules boolean)
returns table (service_name text, is_rule boolean)
language sql stable parallel safe
begin atomic
  select p.service_name, bool_or(p.is_rule)
  from (select pabal.event_type_anchors(matching_subscribers.event_type) offset 0) as a (anchors)  -- computed once
  cross join lateral (
    select r.service_name, r.is_rule, r.pattern
    from pabal.subscription_patterns r
    where matching_subscribers.only_rules and r.is_rule and r.anchor = any (a.anchors collate "C")
    union all
    select s.service_name, s.is_rule, s.pattern
    from pabal.subscription_patterns s
    where not matching_subscribers.only_rules and s.anchor = any (a.anchors collate "C")
  ) p
  join public.services v on v.name = p.service_name
  where matching_subscribers.event_type like p.pattern
    and v.is_active
    and (v.receives_hub_events or matching_subscribers.event_type <> all (pabal.hub_event_types()))
    and (v.subscribe_patterns is null or matching_subscribers.event_type like any (v.subscribe_patterns))
  group by p.service_name;
end;
comment on function pabal.matching_subscribers(text, boolean) is 'Active services that subscribe to this event type and may receive it, or only those with a notification rule.';
revoke all on function pabal.matching_subscribers(text, boolean) from public, anon, authenticated;
grant execute on function pabal.matching_subscribers(text, boolean) to service_role;

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

create or replace function pabal.emit_events(event_type text, payloads jsonb[]) returns bigint
language plpgsql
set search_path = ''
as $$
declare
  inserted bigint := 0;
begin
  -- Without a subscriber a broadcast ends as it begins: on a hot path the rows are not worth writing.
  if cardinality(emit_events.payloads) > 0 and exists (
    select from pabal.matching_subscribers(emit_events.event_type, false) m
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
