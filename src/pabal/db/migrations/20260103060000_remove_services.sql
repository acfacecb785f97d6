-- A service that nothing refers to can be removed, and a permission to manage services and operators by API.

-- The row stays and its name with it, because events name services without a lock: a transaction that publishes the first one may
-- be open. A removed service is a disabled one that lists no longer show; adding the name again starts it anew.
alter table public.services
  add column if not exists removed_at timestamptz;
alter table public.services
  drop constraint if exists service_removed_is_disabled,
  add constraint service_removed_is_disabled check (removed_at is null or not is_active);
comment on column public.services.removed_at is 'When it was removed; NULL unless it was.';

create or replace function pabal.service_uses(service text) returns text[]
language sql stable
set search_path = ''
as $$
  select array_remove(array[
    case when exists (select from public.event_queue e where e.source_service = service)
           or exists (select from public.event_queue e where e.target_service = service)
           or exists (select from pabal.event_fan_outs f where service = any (f.services))
         then 'events' end,
    case when exists (select from public.dead_letter_queue d where d.original_source_service = service)
           or exists (select from public.dead_letter_queue d where d.original_target_service = service)
         then 'dead letters' end,
    case when exists (select from notification.requests r where r.source_service = service) then 'notifications' end,
    case when exists (select from pabal.subscriptions s where s.service_name = service) then 'subscriptions' end,
    case when exists (select from pabal.service_sql_roles r where r.service_name = service) then 'database roles' end,
    case when exists (select from notification.service_links l where l.service_name = service) then 'links of people' end,
    case when exists (
           select from public.token_families f
           where f.service_name = service and f.revoked_at is null and f.expires_at > pabal.now()
         )
         then 'valid tokens' end
  ], null)
$$;
comment on function pabal.service_uses(text) is 'What refers to a service, so that it can be disabled but not removed.';
revoke all on function pabal.service_uses(text) from public, anon, authenticated;
grant execute on function pabal.service_uses(text) to service_role;

create or replace function pabal.known_permissions(permissions jsonb) returns boolean
language sql immutable parallel safe
as $$
  select jsonb_typeof(permissions) = 'array'
     and permissions <@ '[
           "read", "write",
           "events:publish", "events:consume", "events:read",
           "notifications:send", "notifications:read",
           "people:token", "people:write",
           "tokens:introspect", "tokens:admin", "hub:events", "hub:admin", "hub:manage"
         ]'::jsonb
$$;
