-- Subscriptions, broadcast, and publishing from SQL.

-- Who wants what -----------------------------------------------------------------------------------------------------------

create or replace function pabal.as_like(event_types text[]) returns text[]
language sql immutable parallel safe
set search_path = ''
as $$
  select array_agg(replace(replace(each, '_', '\_'), '*', '%') order by place)
  from unnest(event_types) with ordinality as t (each, place)
$$;
comment on function pabal.as_like(text[]) is 'Event types with * as the patterns LIKE understands.';
revoke all on function pabal.as_like(text[]) from public, anon, authenticated;
grant execute on function pabal.as_like(text[]) to service_role;

create or replace function pabal.are_event_types(event_types text[]) returns boolean
language sql immutable parallel safe
set search_path = ''
as $$
  select cardinality(event_types) between 1 and 50
     and not exists (
       select from unnest(event_types) as t (each)
       where each is null or length(each) > 128 or each !~ '^[a-z0-9_*]+(\.[a-z0-9_*]+)*$'
     )
$$;
comment on function pabal.are_event_types(text[]) is 'Whether these are up to fifty event types, * standing for anything.';
revoke all on function pabal.are_event_types(text[]) from public, anon, authenticated;
grant execute on function pabal.are_event_types(text[]) to service_role;

create table if not exists pabal.subscriptions (
  id uuid primary key default pabal.uuid7(),
  service_name text not null references public.services (name) on delete cascade,
  mode text not null,
  event_types text[] not null,
  patterns text[] not null generated always as (pabal.as_like(event_types)) stored,
  description text,
  url text,
  secret text,
  previous_secret text,
  previous_secret_until timestamptz,
  timeout_seconds integer not null default 15,
  paused_at timestamptz,
  disabled_at timestamptz,
  disabled_reason text,
  failures integer not null default 0,
  open_until timestamptz,
  created_at timestamptz not null default pabal.now(),
  updated_at timestamptz not null default pabal.now(),
  constraint subscription_mode check (mode in ('pull', 'push', 'handler', 'rule')),
  constraint subscription_event_types check (pabal.are_event_types(event_types)),
  constraint subscription_pushes_somewhere check ((mode = 'push') = (url is not null) and (mode = 'push') = (secret is not null)),
  constraint subscription_url_length check (length(url) <= 2048),
  constraint subscription_timeout check (timeout_seconds between 1 and 60),
  constraint subscription_disabled_says_why check ((disabled_at is null) = (disabled_reason is null)),
  constraint subscription_previous_ends check ((previous_secret is null) = (previous_secret_until is null))
);
comment on table pabal.subscriptions is 'Which events a service wants, and how it gets them.';
comment on column pabal.subscriptions.id is 'The subscription.';
comment on column pabal.subscriptions.service_name is 'Who wants them.';
comment on column pabal.subscriptions.mode is 'pull: the service fetches; push: the hub posts to url; handler: code in a worker; rule: a notification rule of the hub.';
comment on column pabal.subscriptions.event_types is 'Which types; * stands for anything: order.*';
comment on column pabal.subscriptions.patterns is 'The same for LIKE.';
comment on column pabal.subscriptions.description is 'What it is for.';
comment on column pabal.subscriptions.url is 'Where to, for push.';
comment on column pabal.subscriptions.secret is 'What pushes are signed with (encrypted).';
comment on column pabal.subscriptions.previous_secret is 'The one before, signed with as well while the new one spreads (encrypted).';
comment on column pabal.subscriptions.previous_secret_until is 'Until when.';
comment on column pabal.subscriptions.timeout_seconds is 'How long the receiver has for its answer.';
comment on column pabal.subscriptions.paused_at is 'Since when nothing is handed out; what comes waits.';
comment on column pabal.subscriptions.disabled_at is 'Since when it gets nothing any more.';
comment on column pabal.subscriptions.disabled_reason is 'Why.';
comment on column pabal.subscriptions.failures is 'Failed pushes since the last good one.';
comment on column pabal.subscriptions.open_until is 'The receiver fails: no push before this, then one to see.';
comment on column pabal.subscriptions.created_at is 'When it was made.';
comment on column pabal.subscriptions.updated_at is 'When it last changed.';

create index if not exists idx_subscriptions_service_name on pabal.subscriptions (service_name);
-- What a worker's code handles is one subscription a service.
create unique index if not exists idx_subscriptions_handler on pabal.subscriptions (service_name) where mode = 'handler';

drop trigger if exists update_subscriptions_updated_at on pabal.subscriptions;
create trigger update_subscriptions_updated_at
  before update on pabal.subscriptions
  for each row
  when (new.updated_at is not distinct from old.updated_at)
  execute function public.update_updated_at_column();

alter table pabal.subscriptions enable row level security;
drop policy if exists "subscriptions_service_role_all" on pabal.subscriptions;
create policy "subscriptions_service_role_all" on pabal.subscriptions for all to service_role using (true) with check (true);
revoke all on table pabal.subscriptions from public, anon, authenticated;
grant select, insert, update, delete on table pabal.subscriptions to service_role;

-- Broadcast ------------------------------------------------------------------------------------------------------------------
-- A broadcast is over at once: what is delivered, retried or dead are its deliveries, rows of their own with their target
-- and their parent. How they ended is counted when somebody asks; no row is written by all of them.

alter table public.event_queue add column if not exists is_broadcast boolean not null default false;
comment on column public.event_queue.is_broadcast is 'It went to everybody who wanted it: its deliveries have it as their parent.';

create or replace function pabal.event_spreads() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  new.is_broadcast := true;
  new.status := 'completed';
  new.processed_at := pabal.now();
  return new;
end
$$;
comment on function pabal.event_spreads() is 'Ends a broadcast as it is published; its deliveries go on.';
revoke all on function pabal.event_spreads() from public, anon, authenticated;

drop trigger if exists event_queue_spreads on public.event_queue;
create trigger event_queue_spreads
  before insert on public.event_queue
  for each row
  when (new.target_service is null and new.status = 'pending')
  execute function pabal.event_spreads();

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

  insert into pabal.event_due (id, service, priority, due_at, seq, ordering_key, expires_at, is_retry)
  select a.id, a.target_service, a.priority, coalesce(a.next_retry_at, pabal.now()), a.seq, a.ordering_key, a.expires_at, a.retry_count > 0
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
comment on function pabal.events_arrive() is 'Owes new pending events to their targets and broadcasts to whoever wants them; of a line only the head is due.';
revoke all on function pabal.events_arrive() from public, anon, authenticated;

-- Nobody could have subscribed before.
update public.event_queue
set status = 'completed', is_broadcast = true
where target_service is null and status = 'pending';

-- Publishing -----------------------------------------------------------------------------------------------------------------

create or replace function pabal.content_hash(
  event_type text, target text, payload jsonb, priority integer, max_retries integer,
  deliver_at timestamptz, expires_at timestamptz, ordering_key text
) returns bytea
language sql immutable parallel safe
set search_path = ''
as $$
  select sha256(convert_to(jsonb_build_array(
    event_type, target, payload, priority, max_retries,
    extract(epoch from deliver_at), extract(epoch from expires_at), ordering_key
  )::text, 'utf8'))
$$;
comment on function pabal.content_hash(text, text, jsonb, integer, integer, timestamptz, timestamptz, text) is 'What an idempotency key stands for: the same key with other content is a mistake. Trace ids do not count: a second try has its own.';
revoke all on function pabal.content_hash(text, text, jsonb, integer, integer, timestamptz, timestamptz, text) from public, anon, authenticated;
grant execute on function pabal.content_hash(text, text, jsonb, integer, integer, timestamptz, timestamptz, text) to service_role;

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
  hash bytea := case when publish.idempotency_key is not null then pabal.content_hash(
    publish.event_type, publish.target, publish.payload, publish.priority, publish.max_retries,
    publish.deliver_at, publish.expires_at, publish.ordering_key) end;
  published uuid;
  same boolean;
begin
  if octet_length(publish.payload::text) > 262144 then
    raise exception 'payload: is larger than 262144 bytes' using errcode = 'program_limit_exceeded';
  end if;
  loop  -- the first event of a key may go, or lose its key, between our two looks
    insert into public.event_queue (
      id, event_type, source_service, target_service, payload, priority, max_retries, next_retry_at, expires_at,
      idempotency_key, content_hash, ordering_key, correlation_id, traceparent
    ) values (
      pabal.uuid7(), publish.event_type, publish.source, publish.target, publish.payload, publish.priority,
      publish.max_retries, publish.deliver_at, publish.expires_at, publish.idempotency_key, hash, publish.ordering_key,
      publish.correlation_id, publish.traceparent
    )
    on conflict (source_service, idempotency_key) where idempotency_key is not null do nothing
    returning id into published;
    if published is not null then
      return published;
    end if;
    select e.id, e.content_hash is not distinct from hash into published, same
    from public.event_queue e
    where e.source_service = publish.source and e.idempotency_key = publish.idempotency_key;
    if same then
      return published;
    elsif published is not null then
      raise exception 'idempotency_key: was used for another event (%)', published using errcode = 'unique_violation';
    end if;
  end loop;
end
$$;
comment on function pabal.publish(text, text, jsonb, text, integer, integer, timestamptz, timestamptz, text, text, text, text) is 'Publishes an event in the caller''s transaction and returns its id; a key already published returns the first event''s.';
revoke all on function pabal.publish(text, text, jsonb, text, integer, integer, timestamptz, timestamptz, text, text, text, text) from public, anon, authenticated;
grant execute on function pabal.publish(text, text, jsonb, text, integer, integer, timestamptz, timestamptz, text, text, text, text) to service_role, pabal_publisher;

-- Keys are kept for a day; the sweep finds the old ones without reading the table.
create index if not exists idx_event_queue_keyed on public.event_queue (created_at) where idempotency_key is not null;

-- A story is found by its correlation id too; deliveries are found through their parent.
create index if not exists idx_event_queue_correlation_id on public.event_queue (correlation_id)
  where correlation_id is not null and parent_id is null;
