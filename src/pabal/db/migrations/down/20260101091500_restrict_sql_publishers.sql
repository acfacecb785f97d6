-- Back to publishing from SQL in the name of any service.

create or replace function notification.request(
  recipient_type text,
  recipient_id text,
  template_key text,
  payload jsonb default '{}',
  guild_id uuid default null,
  scheduled_at timestamptz default null,
  expires_at timestamptz default null,
  dedupe_key text default null,
  locale text default null,
  incident text default null,
  event_id uuid default null,
  source_service text default null
) returns uuid
language plpgsql
-- Callers may request a notification; they may not read or write the table.
security definer
set search_path = ''
as $$
#variable_conflict use_column
declare
  template notification.templates;
  invalid text;
  request_id uuid;
begin
  select * into template from notification.templates t where t.key = request.template_key and t.retired_at is null;
  if not found then
    raise exception 'unknown template %', coalesce(request.template_key, 'NULL') using errcode = 'foreign_key_violation';
  end if;
  invalid := notification.first_invalid_variable(template.variables, request.payload);
  if invalid is not null then
    raise exception 'template % needs the variable % (%)', template.key, invalid, template.variables ->> invalid
      using errcode = 'check_violation', column = invalid;
  end if;

  -- Repeated only if the first request was purged between the two statements.
  loop
    insert into notification.requests as new (
      id, recipient_type, recipient_id, guild_id, template_key, payload, state, scheduled_at, priority,
      expires_at, dedupe_key, locale, incident, event_id, source_service
    ) values (
      pabal.uuid7(), request.recipient_type, request.recipient_id, request.guild_id, request.template_key, request.payload, 'pending',
      coalesce(request.scheduled_at, pabal.now()),
      case template.criticality when 'emergency' then 1 when 'important' then 3 else 5 end,
      request.expires_at, request.dedupe_key, request.locale, request.incident, request.event_id, request.source_service
    )
    on conflict (dedupe_key) where dedupe_key is not null do nothing
    returning new.id into request_id;
    if request_id is not null then
      -- Plain SQL does not notify after its commit as the hub does.
      perform pg_notify('pabal', 'notifications');
      return request_id;
    end if;
    select old.id into request_id from notification.requests as old where old.dedupe_key = request.dedupe_key;
    if request_id is not null then
      return request_id;
    end if;
  end loop;
end
$$;

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
  event_id uuid;
  is_same boolean;
begin
  if octet_length(publish.payload::text) > 262144 then
    raise exception 'payload: is larger than 262144 bytes' using errcode = 'program_limit_exceeded';
  end if;
  loop  -- between the two statements the first event of a key may be deleted or lose its key
    insert into public.event_queue (
      id, event_type, source_service, target_service, payload, priority, max_retries, next_retry_at, expires_at,
      idempotency_key, content_hash, ordering_key, correlation_id, traceparent
    ) values (
      pabal.uuid7(), publish.event_type, publish.source, publish.target, publish.payload, publish.priority,
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
    where e.source_service = publish.source and e.idempotency_key = publish.idempotency_key;
    if is_same then
      return event_id;
    elsif event_id is not null then
      raise exception 'idempotency_key: was used for another event (%)', event_id using errcode = 'unique_violation';
    end if;
  end loop;
end
$$;

drop function if exists pabal.check_publish_right(text, text);
drop function if exists pabal.resolve_sql_source(text, text);
drop table if exists pabal.service_sql_roles;
