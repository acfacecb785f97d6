-- Operators of the console and their sessions.

create table if not exists pabal.operators (
  id uuid primary key default pabal.uuid7(),
  name text not null,
  password_hash text not null,
  role text not null default 'viewer',
  created_at timestamptz not null default pabal.now(),
  disabled_at timestamptz,
  last_signed_in_at timestamptz,
  constraint operator_name_form check (length(name) between 1 and 64),
  constraint operator_role check (role in ('viewer', 'admin'))
);
comment on table pabal.operators is 'Users of the console.';
comment on column pabal.operators.id is 'Id of the operator.';
comment on column pabal.operators.name is 'Name to sign in with; case-insensitive.';
comment on column pabal.operators.password_hash is 'Argon2id hash with its parameters.';
comment on column pabal.operators.role is 'viewer: read only; admin: may also change things.';
comment on column pabal.operators.created_at is 'When the operator was added.';
comment on column pabal.operators.disabled_at is 'When signing in was disabled.';
comment on column pabal.operators.last_signed_in_at is 'When the operator last signed in.';
create unique index if not exists idx_operators_name on pabal.operators (lower(name));

create table if not exists pabal.operator_sessions (
  token_hash bytea primary key,
  operator_id uuid not null references pabal.operators (id) on delete cascade,
  csrf bytea not null,
  created_at timestamptz not null default pabal.now(),
  expires_at timestamptz not null,
  last_seen_at timestamptz not null default pabal.now(),
  client_ip inet,
  user_agent text,
  id uuid not null default pabal.uuid7(),
  previous_hash bytea,
  rotated_at timestamptz not null default pabal.now(),
  seed bytea not null default uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()),
  constraint session_token_is_hashed check (octet_length(token_hash) = 32),
  constraint session_expires_later check (expires_at > created_at),
  constraint session_previous_is_hashed check (octet_length(previous_hash) = 32 and previous_hash <> token_hash)
);
comment on table pabal.operator_sessions is 'Console sessions. The cookie is rotated while a session lives.';
comment on column pabal.operator_sessions.token_hash is 'SHA-256 of the cookie.';
comment on column pabal.operator_sessions.operator_id is 'The signed-in operator.';
comment on column pabal.operator_sessions.csrf is 'CSRF token of the session''s forms.';
comment on column pabal.operator_sessions.created_at is 'When the operator signed in.';
comment on column pabal.operator_sessions.expires_at is 'When the operator has to sign in again.';
comment on column pabal.operator_sessions.last_seen_at is 'When a page was last opened.';
comment on column pabal.operator_sessions.client_ip is 'Client address.';
comment on column pabal.operator_sessions.user_agent is 'User agent of the browser.';
comment on column pabal.operator_sessions.id is 'Id of the session; not secret.';
comment on column pabal.operator_sessions.previous_hash is 'SHA-256 of the previous cookie: accepted for a short grace period, a sign of theft after it.';
comment on column pabal.operator_sessions.rotated_at is 'When the current cookie was issued.';
comment on column pabal.operator_sessions.seed is 'Secret from which, with the previous cookie, the next one is derived: concurrent requests get the same cookie.';
create index if not exists idx_operator_sessions_operator_id on pabal.operator_sessions (operator_id);
create index if not exists idx_operator_sessions_expires_at on pabal.operator_sessions (expires_at);
create unique index if not exists idx_operator_sessions_id on pabal.operator_sessions (id);
create unique index if not exists idx_operator_sessions_previous_hash on pabal.operator_sessions (previous_hash)
  where previous_hash is not null;

-- Privileges -----------------------------------------------------------------------------------------------------------

alter table pabal.operators enable row level security;
drop policy if exists "operators_service_role_all" on pabal.operators;
create policy "operators_service_role_all" on pabal.operators for all to service_role using (true) with check (true);
revoke all on table pabal.operators from public, anon, authenticated;
grant select, insert, update, delete on table pabal.operators to service_role;

alter table pabal.operator_sessions enable row level security;
drop policy if exists "operator_sessions_service_role_all" on pabal.operator_sessions;
create policy "operator_sessions_service_role_all" on pabal.operator_sessions for all to service_role using (true) with check (true);
revoke all on table pabal.operator_sessions from public, anon, authenticated;
grant select, insert, update, delete on table pabal.operator_sessions to service_role;
