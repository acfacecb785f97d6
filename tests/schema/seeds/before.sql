-- What the seed takes for granted and does not make: Supabase's roles, people and trigger function.

do $$
declare
  role text;
begin
  foreach role in array array['anon', 'authenticated', 'service_role'] loop
    begin
      execute format('create role %I nologin', role);
    exception when duplicate_object or unique_violation then
      null;
    end;
  end loop;
end
$$;

create schema auth;
create table auth.users (id uuid primary key, email text);
create function auth.uid() returns uuid language sql stable
as $$ select (nullif(current_setting('request.jwt.claims', true), '')::jsonb ->> 'sub')::uuid $$;
create table public.profiles (id uuid primary key references auth.users (id) on delete cascade, role text not null);
alter table public.profiles enable row level security;
create policy "own profile" on public.profiles for select to authenticated using (id = auth.uid());
grant usage on schema auth to anon, authenticated, service_role;
grant select on public.profiles to anon, authenticated, service_role;
create function public.update_updated_at_column() returns trigger language plpgsql
as $$ begin new.updated_at = now(); return new; end $$;
