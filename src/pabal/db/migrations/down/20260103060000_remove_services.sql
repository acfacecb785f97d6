-- Removed services are disabled ones again, and the permission to manage is withdrawn.

update public.services set permissions = permissions - 'hub:manage' where permissions ? 'hub:manage';
update public.service_tokens set permissions = permissions - 'hub:manage' where permissions ? 'hub:manage';
update public.token_families set permissions = permissions - 'hub:manage' where permissions ? 'hub:manage';

create or replace function pabal.known_permissions(permissions jsonb) returns boolean
language sql immutable parallel safe
as $$
  select jsonb_typeof(permissions) = 'array'
     and permissions <@ '[
           "read", "write",
           "events:publish", "events:consume", "events:read",
           "notifications:send", "notifications:read",
           "people:token", "people:write",
           "tokens:introspect", "tokens:admin", "hub:events", "hub:admin"
         ]'::jsonb
$$;

drop function if exists pabal.service_uses(text);
alter table public.services
  drop constraint if exists service_removed_is_disabled,
  drop column if exists removed_at;
