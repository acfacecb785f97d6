-- A database as Supabase brings it, run by a superuser: `postgres` owns the database and is no superuser, `auth` belongs to
-- another role, and everything new in `public` is granted to anon and authenticated.

do $$
declare
  role text;
begin
  foreach role in array array['anon', 'authenticated', 'service_role', 'supabase_auth_admin', 'postgres'] loop
    if to_regrole(role) is null then
      execute format('create role %I nologin', role);
    end if;
  end loop;
  alter role service_role bypassrls;
  alter role postgres login createrole createdb bypassrls;
  grant anon, authenticated, service_role to postgres with admin option;
  execute format('alter database %I owner to postgres', current_database());
end
$$;

create schema auth authorization supabase_auth_admin;
create table auth.users (
  instance_id uuid,
  id uuid primary key,
  aud varchar(255),
  role varchar(255),
  email varchar(255),
  raw_user_meta_data jsonb,
  created_at timestamptz,
  updated_at timestamptz
);
alter table auth.users owner to supabase_auth_admin;
create function auth.uid() returns uuid language sql stable
as $$ select (nullif(current_setting('request.jwt.claims', true), '')::jsonb ->> 'sub')::uuid $$;
alter function auth.uid() owner to supabase_auth_admin;
grant usage on schema auth to anon, authenticated, service_role, postgres;
grant all on auth.users to postgres;

grant usage on schema public to anon, authenticated, service_role, postgres;
grant create on schema public to postgres;
alter default privileges for role postgres in schema public grant all on tables to anon, authenticated, service_role;
alter default privileges for role postgres in schema public grant all on sequences to anon, authenticated, service_role;
alter default privileges for role postgres in schema public grant all on functions to anon, authenticated, service_role;

set role postgres;
create table public.profiles (
  id uuid primary key references auth.users on delete cascade,
  updated_at timestamptz,
  username text unique,
  full_name text
);
alter table public.profiles enable row level security;
create policy "Public profiles are viewable by everyone." on public.profiles for select using (true);
create policy "Users can update own profile." on public.profiles for update using (auth.uid() = id);
create function public.update_updated_at_column() returns trigger language plpgsql
as $$ begin new.updated_at = now(); return new; end $$;
reset role;
