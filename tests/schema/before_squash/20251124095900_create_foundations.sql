-- What every later file stands on. Whatever this database already has (Supabase brings most of it) is used as it is and
-- left as it is; what is made here is written into pabal.made, so that the way back drops only that.

-- The schema is made before there is a place to note it; the table's comment carries the answer.
do $$
begin
  if to_regnamespace('pabal') is null then
    create schema pabal;
    comment on schema pabal is 'Pabal''s own plumbing: made by Pabal.';
  end if;
end
$$;

create table if not exists pabal.made (
  kind text not null,
  name text not null,
  primary key (kind, name)
);
comment on table pabal.made is 'What Pabal made although it might have been there before; the rest was found and is never dropped.';
comment on column pabal.made.kind is 'schema, table, function or usage.';
comment on column pabal.made.name is 'The qualified name; for usage: the role on the schema.';

insert into pabal.made (kind, name)
select 'schema', 'pabal'
where obj_description(to_regnamespace('pabal'), 'pg_namespace') = 'Pabal''s own plumbing: made by Pabal.';

-- Roles belong to the whole server: another database may be making the same ones at this moment.
do $$
declare
  role text;
begin
  foreach role in array array['anon', 'authenticated', 'service_role', 'pabal_publisher'] loop
    if to_regrole(role) is null then
      begin
        execute format('create role %I nologin', role);
      exception when duplicate_object or unique_violation then
        null;
      end;
    end if;
  end loop;
end
$$;

do $$
declare
  role text;
begin
  foreach role in array array['service_role', 'authenticated'] loop
    if not has_schema_privilege(role, 'public', 'usage') then
      execute format('grant usage on schema public to %I', role);
      insert into pabal.made (kind, name) values ('usage', role || ' on public');
    end if;
  end loop;
end
$$;

revoke all on schema pabal from public, anon, authenticated;
grant usage on schema pabal to service_role, pabal_publisher;

-- Time -----------------------------------------------------------------------------------------------------------------

-- Every default and every statement asks here, so that tests can move time by replacing one function.
create or replace function pabal.now() returns timestamptz
language sql stable parallel safe
as $$ select pg_catalog.now() $$;
comment on function pabal.now() is 'The time of the database, as everything in Pabal sees it.';
grant execute on function pabal.now() to public;

-- Ids ------------------------------------------------------------------------------------------------------------------

-- gen_random_uuid() has already set the variant and version 4 (0100); bits 52 and 53 make it 7 (0111).
create or replace function pabal.uuid7() returns uuid
language sql volatile parallel safe
as $$
  select encode(
    set_bit(
      set_bit(
        overlay(
          uuid_send(gen_random_uuid())
          placing substring(int8send(floor(extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
          from 1 for 6
        ), 52, 1
      ), 53, 1
    ), 'hex'
  )::uuid
$$;
comment on function pabal.uuid7() is 'A UUID version 7 (milliseconds, then chance) on any PostgreSQL, as 18 has it built in.';
grant execute on function pabal.uuid7() to public;

-- What Supabase brings -------------------------------------------------------------------------------------------------

do $$
begin
  if to_regnamespace('auth') is null then
    create schema auth;
    comment on schema auth is 'People who sign in, as Supabase lays it out.';
    grant usage on schema auth to anon, authenticated, service_role;
    insert into pabal.made (kind, name) values ('schema', 'auth');
  end if;

  if to_regclass('auth.users') is null then
    create table auth.users (
      id uuid primary key default gen_random_uuid(),
      email text,
      created_at timestamptz not null default pabal.now()
    );
    comment on table auth.users is 'People who sign in.';
    comment on column auth.users.id is 'The person.';
    comment on column auth.users.email is 'Where to write to them.';
    comment on column auth.users.created_at is 'When they were added.';
    alter table auth.users enable row level security;
    create policy "users_service_role_all" on auth.users for all to service_role using (true) with check (true);
    revoke all on table auth.users from public, anon, authenticated;
    grant select, insert, update, delete on table auth.users to service_role;
    insert into pabal.made (kind, name) values ('table', 'auth.users');
  end if;

  if to_regprocedure('auth.uid()') is null then
    create function auth.uid() returns uuid
    language sql stable parallel safe
    as $body$
      select coalesce(
        nullif(current_setting('request.jwt.claim.sub', true), ''),
        nullif(current_setting('request.jwt.claims', true), '')::jsonb ->> 'sub'
      )::uuid
    $body$;
    comment on function auth.uid() is 'The signed-in person, from the claims of the request.';
    grant execute on function auth.uid() to public;
    insert into pabal.made (kind, name) values ('function', 'auth.uid()');
  end if;

  if to_regprocedure('public.update_updated_at_column()') is null then
    create function public.update_updated_at_column() returns trigger
    language plpgsql
    set search_path = ''
    as $body$
    begin
      new.updated_at = pabal.now();
      return new;
    end
    $body$;
    comment on function public.update_updated_at_column() is 'Sets updated_at to now at every update.';
    revoke all on function public.update_updated_at_column() from public, anon, authenticated;
    insert into pabal.made (kind, name) values ('function', 'public.update_updated_at_column()');
  end if;

  if to_regclass('public.profiles') is null then
    create table public.profiles (
      id uuid primary key references auth.users (id) on delete cascade,
      role text not null default 'user',
      created_at timestamptz not null default pabal.now(),
      updated_at timestamptz not null default pabal.now()
    );
    comment on table public.profiles is 'What a person may do.';
    comment on column public.profiles.id is 'The person.';
    comment on column public.profiles.role is 'user, admin or super_admin; the last two may look at dead letters.';
    comment on column public.profiles.created_at is 'When the profile was added.';
    comment on column public.profiles.updated_at is 'When it last changed.';
    create trigger update_profiles_updated_at
      before update on public.profiles
      for each row
      when (new.updated_at is not distinct from old.updated_at)
      execute function public.update_updated_at_column();
    alter table public.profiles enable row level security;
    create policy "profiles_service_role_all" on public.profiles for all to service_role using (true) with check (true);
    create policy "profiles_own_select" on public.profiles for select to authenticated using (id = auth.uid());
    revoke all on table public.profiles from public, anon, authenticated;
    grant select on table public.profiles to authenticated;
    grant select, insert, update, delete on table public.profiles to service_role;
    insert into pabal.made (kind, name) values ('table', 'public.profiles');
  end if;
end
$$;

-- The registry of services ---------------------------------------------------------------------------------------------

create or replace function pabal.known_permissions(permissions jsonb) returns boolean
language sql immutable parallel safe
as $$
  select jsonb_typeof(permissions) = 'array'
     and permissions <@ '[
           "read", "write",
           "events:publish", "events:consume", "events:read",
           "notifications:send", "notifications:read",
           "tokens:introspect", "tokens:admin", "hub:admin"
         ]'::jsonb
$$;
comment on function pabal.known_permissions(jsonb) is 'Whether this is a list of permissions Pabal knows, or of their groups read and write.';
revoke all on function pabal.known_permissions(jsonb) from public, anon, authenticated;
grant execute on function pabal.known_permissions(jsonb) to service_role;

create table if not exists public.services (
  name text primary key,
  description text,
  permissions jsonb not null default '["read"]',
  is_active boolean not null default true,
  disabled_at timestamptz,
  created_at timestamptz not null default pabal.now(),
  updated_at timestamptz not null default pabal.now(),
  constraint service_name_form check (name ~ '^[a-z][a-z0-9_]{1,62}$'),
  constraint service_permissions_known check (pabal.known_permissions(permissions)),
  constraint service_disabled_says_when check (is_active = (disabled_at is null))
);
comment on table public.services is 'The services that may hold tokens and send or receive events.';
comment on column public.services.name is 'The service; also its client_id.';
comment on column public.services.description is 'What it is, for people.';
comment on column public.services.permissions is 'What its tokens may be granted, as written by the operator: groups stay groups.';
comment on column public.services.is_active is 'Whether it may get tokens and deliveries.';
comment on column public.services.disabled_at is 'Since when it may not.';
comment on column public.services.created_at is 'When it was added.';
comment on column public.services.updated_at is 'When it last changed.';

drop trigger if exists update_services_updated_at on public.services;
create trigger update_services_updated_at
  before update on public.services
  for each row
  when (new.updated_at is not distinct from old.updated_at)
  execute function public.update_updated_at_column();

insert into public.services (name, description, permissions) values
  ('hub', 'Pabal itself', '["write", "tokens:introspect", "tokens:admin", "hub:admin"]'),
  ('minu_find', '사업기회 탐색', '["write"]'),
  ('minu_frame', '문제정의 & RFP', '["write"]'),
  ('minu_build', '프로젝트 진행', '["write"]'),
  ('minu_keep', '운영/유지보수', '["write"]')
on conflict (name) do nothing;

create table if not exists public.service_secrets (
  id uuid primary key default pabal.uuid7(),
  service_name text not null references public.services (name) on delete cascade,
  secret_hash text not null unique,
  slot smallint not null default 1,
  created_at timestamptz not null default pabal.now(),
  expires_at timestamptz,
  revoked_at timestamptz,
  constraint secret_hash_form check (secret_hash ~ '^[0-9a-f]{64}$'),
  constraint secret_expires_later check (expires_at > created_at),
  constraint secret_slots check (slot in (1, 2))
);
comment on table public.service_secrets is 'Client secrets: two may live at once, so that one can be rotated while the other works.';
comment on column public.service_secrets.id is 'The secret''s id, which may be shown.';
comment on column public.service_secrets.service_name is 'Whose secret it is.';
comment on column public.service_secrets.secret_hash is 'SHA-256 of the secret in hex; the secret itself is shown once and kept nowhere.';
comment on column public.service_secrets.slot is 'Which of the two places it lives in; filled by a trigger.';
comment on column public.service_secrets.created_at is 'When it was made.';
comment on column public.service_secrets.expires_at is 'When it stops working; empty means not by itself.';
comment on column public.service_secrets.revoked_at is 'When it was taken back, or was found expired.';

-- Two places and a unique index hold under every race and isolation level; counting alone would not.
create unique index if not exists idx_service_secrets_live
  on public.service_secrets (service_name, slot)
  where revoked_at is null;

create or replace function pabal.place_secret() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  -- One at a time per service, so that the loser of a race hears the reason and not a unique violation.
  perform from public.services where name = new.service_name for no key update;
  update public.service_secrets
  set revoked_at = expires_at
  where service_name = new.service_name and revoked_at is null and expires_at <= pabal.now();
  new.slot := (
    select min(place)
    from generate_series(1, 2) as place
    where not exists (
      select from public.service_secrets as taken
      where taken.service_name = new.service_name and taken.revoked_at is null and taken.slot = place
    )
  );
  if new.slot is null then
    raise exception 'service % already has two live secrets', new.service_name
      using errcode = 'check_violation', constraint = 'secret_slots', table = 'service_secrets', schema = 'public';
  end if;
  return new;
end
$$;
comment on function pabal.place_secret() is 'Gives a new secret one of its service''s two places; an expired secret makes room.';
revoke all on function pabal.place_secret() from public, anon, authenticated;

drop trigger if exists service_secrets_place on public.service_secrets;
create trigger service_secrets_place
  before insert on public.service_secrets
  for each row
  when (new.revoked_at is null)
  execute function pabal.place_secret();

-- Who may --------------------------------------------------------------------------------------------------------------

alter table pabal.made enable row level security;
drop policy if exists "made_service_role_all" on pabal.made;
create policy "made_service_role_all" on pabal.made for all to service_role using (true) with check (true);
revoke all on table pabal.made from public, anon, authenticated;
grant select, insert, update, delete on table pabal.made to service_role;

alter table public.services enable row level security;
drop policy if exists "services_service_role_all" on public.services;
create policy "services_service_role_all" on public.services for all to service_role using (true) with check (true);
revoke all on table public.services from public, anon, authenticated;
grant select, insert, update, delete on table public.services to service_role;

alter table public.service_secrets enable row level security;
drop policy if exists "service_secrets_service_role_all" on public.service_secrets;
create policy "service_secrets_service_role_all" on public.service_secrets for all to service_role using (true) with check (true);
revoke all on table public.service_secrets from public, anon, authenticated;
grant select, insert, update, delete on table public.service_secrets to service_role;
