-- Publishing from SQL: a database role speaks only for the services it is registered for.

create table if not exists pabal.service_sql_roles (
  service_name text not null references public.services (name) on delete cascade,
  role_name text not null,
  created_at timestamptz not null default pabal.now(),
  primary key (service_name, role_name),
  constraint sql_role_of_a_service check (service_name <> 'hub')
);
comment on table pabal.service_sql_roles is 'Which database roles may publish and request notifications in the name of which services.';
comment on column pabal.service_sql_roles.service_name is 'The service.';
comment on column pabal.service_sql_roles.role_name is 'The database role. Roles that inherit its privileges speak for the service too.';
comment on column pabal.service_sql_roles.created_at is 'When it was registered.';

alter table pabal.service_sql_roles enable row level security;
drop policy if exists "service_sql_roles_service_role_all" on pabal.service_sql_roles;
create policy "service_sql_roles_service_role_all" on pabal.service_sql_roles for all to service_role using (true) with check (true);
revoke all on table pabal.service_sql_roles from public, anon, authenticated;
grant select, insert, update, delete on table pabal.service_sql_roles to service_role;

-- Runs inside security definer functions. There current_user is the owner, and session_user ignores SET ROLE: the caller is
-- the role that was set, or else the login.
create or replace function pabal.resolve_sql_source(service text, permission text) returns text
language plpgsql stable
set search_path = ''
as $$
declare
  caller name := coalesce(nullif(current_setting('role'), 'none'), session_user);
  services text[];
  registered public.services;
begin
  -- service_role, its members (the hub's login) and the owner speak for every service, superusers as well.
  if pg_has_role(caller, 'service_role', 'usage') or pg_has_role(caller, current_user, 'usage') then
    return service;
  end if;
  services := array(
    select m.service_name
    from pabal.service_sql_roles m
    join pg_catalog.pg_roles r on r.rolname = m.role_name
    where (resolve_sql_source.service is null or m.service_name = resolve_sql_source.service)
      and pg_has_role(caller, r.oid, 'usage')
    order by m.service_name
  );
  if service = 'hub' then
    raise exception 'role % may not act as the hub', caller using errcode = 'insufficient_privilege';
  elsif cardinality(services) = 0 then
    raise exception 'role % may not act as the service %', caller, coalesce(service, 'NULL')
      using errcode = 'insufficient_privilege',
            hint = format('Run: pabal service sql-role add %s %s', coalesce(service, 'SERVICE'), quote_ident(caller));
  elsif cardinality(services) > 1 then
    raise exception 'source_service: is required, because role % acts as several services: %', caller, array_to_string(services, ', ')
      using errcode = 'insufficient_privilege';
  end if;
  select * into registered from public.services s where s.name = services[1];
  if not registered.is_active then
    raise exception 'service % is disabled', registered.name
      using errcode = 'insufficient_privilege', hint = format('Run: pabal service enable %s', registered.name);
  elsif not registered.permissions ?| array[permission, 'write'] then  -- the group contains every permission asked for here
    raise exception 'service % lacks the permission %', registered.name, permission
      using errcode = 'insufficient_privilege', hint = 'Grant it with: pabal service set';
  end if;
  return registered.name;
end
$$;
comment on function pabal.resolve_sql_source(text, text) is 'The service that the calling role acts as, if it may and the service has the permission. Without a service: the only one that the role is registered for.';
revoke all on function pabal.resolve_sql_source(text, text) from public, anon, authenticated;

create or replace function pabal.check_publish_right(service text, event_type text) returns void
language plpgsql stable
set search_path = ''
as $$
begin
  if service = 'hub' then
    return;
  elsif event_type = any (pabal.hub_event_types()) then
    raise exception 'event_type: only the hub publishes %', event_type using errcode = 'insufficient_privilege';
  elsif exists (
    select from public.services s
    where s.name = service and s.publish_patterns is not null
      and not check_publish_right.event_type like any (s.publish_patterns)
  ) then
    raise exception 'event_type: service % may not publish %', service, event_type using errcode = 'insufficient_privilege';
  end if;
end
$$;
comment on function pabal.check_publish_right(text, text) is 'Raises an error unless the service may publish events of this type.';
revoke all on function pabal.check_publish_right(text, text) from public, anon, authenticated;

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
  acting_service text := pabal.resolve_sql_source(publish.source, 'events:publish');
  hash bytea := case when publish.idempotency_key is not null then pabal.content_hash(
    publish.event_type, publish.target, publish.payload, publish.priority, publish.max_retries,
    publish.deliver_at, publish.expires_at, publish.ordering_key) end;
  event_id uuid;
  is_same boolean;
begin
  perform pabal.check_publish_right(acting_service, publish.event_type);
  if octet_length(publish.payload::text) > 262144 then
    raise exception 'payload: is larger than 262144 bytes' using errcode = 'program_limit_exceeded';
  end if;
  loop  -- between the two statements the first event of a key may be deleted or lose its key
    insert into public.event_queue (
      id, event_type, source_service, target_service, payload, priority, max_retries, next_retry_at, expires_at,
      idempotency_key, content_hash, ordering_key, correlation_id, traceparent
    ) values (
      pabal.uuid7(), publish.event_type, acting_service, publish.target, publish.payload, publish.priority,
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
    where e.source_service = acting_service and e.idempotency_key = publish.idempotency_key;
    if is_same then
      return event_id;
    elsif event_id is not null then
      raise exception 'idempotency_key: was used for another event (%)', event_id using errcode = 'unique_violation';
    end if;
  end loop;
end
$$;

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
      request.expires_at, request.dedupe_key, request.locale, request.incident, request.event_id, acting_service
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
