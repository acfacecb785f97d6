-- Drops what the foundations made and nothing they found. Roles stay: other databases of this server may use them.

drop table if exists public.service_secrets;
drop function if exists pabal.assign_secret_slot();
drop table if exists public.services;
drop function if exists pabal.known_permissions(jsonb);

do $$
declare
  made text[] := array(select kind || ' ' || name from pabal.created_objects);
begin
  if 'table public.profiles' = any(made) then
    drop table public.profiles;
  end if;
  if 'function public.update_updated_at_column()' = any(made) then
    drop function public.update_updated_at_column();
  end if;
  if 'function auth.uid()' = any(made) then
    drop function auth.uid();
  end if;
  if 'table auth.users' = any(made) then
    drop table auth.users;
  end if;
  if 'schema auth' = any(made) then
    drop schema auth;
  end if;
  if 'usage service_role on public' = any(made) then
    revoke usage on schema public from service_role;
  end if;
  if 'usage authenticated on public' = any(made) then
    revoke usage on schema public from authenticated;
  end if;
  drop table pabal.created_objects;
  drop function pabal.uuid7();
  drop function pabal.now();
  if 'schema pabal' = any(made) then
    drop schema pabal;
  else
    revoke usage on schema pabal from service_role, pabal_publisher;
  end if;
end
$$;
