-- A notification that can never be delivered is refused in SQL as in the API: its recipient has an id of no known form, or its
-- locale is a language without templates. Rows that are stored already stay as they are.

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
  acting_service text := pabal.resolve_sql_source(request.source_service, 'notifications:send');
  stored_key text := coalesce(acting_service || ':', '') || request.dedupe_key;
  template notification.templates;
  invalid text;
  request_id uuid;
begin
  if request.recipient_id !~ '^([0-9]{1,20}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})$' then
    raise exception 'recipient_id: must be a Discord id of up to 20 digits, or the UUID of a registered user'
      using errcode = 'check_violation', column = 'recipient_id';
  end if;
  if request.locale !~ '^(ko|en)(-[A-Z]{2})?$' then
    raise exception 'locale: must be ko or en, with or without a region, such as en-US'
      using errcode = 'check_violation', column = 'locale';
  end if;
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
      request.expires_at, stored_key, request.locale, request.incident, request.event_id, acting_service
    )
    on conflict (dedupe_key) where dedupe_key is not null do nothing
    returning new.id into request_id;
    if request_id is not null then
      -- Plain SQL does not notify after its commit as the hub does.
      perform pg_notify('pabal', 'notifications');
      return request_id;
    end if;
    select old.id into request_id from notification.requests as old where old.dedupe_key = stored_key;
    if request_id is not null then
      return request_id;
    end if;
  end loop;
end
$$;
