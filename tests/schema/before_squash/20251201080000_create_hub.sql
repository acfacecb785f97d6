-- The hub's own plumbing: limits, console users, the audit log and its seals, upkeep, workers.

-- Rate limits: a limit forgotten at a crash costs nothing, a WAL record at every request would. No index on tat: it moves
-- at every request, and the sweep of idle limits may read all of so small a table.
create unlogged table if not exists pabal.limits (
  key text primary key,
  tat timestamptz not null
) with (fillfactor = 70);
comment on table pabal.limits is 'Rate limits (GCRA): one row per somebody who is limited.';
comment on column pabal.limits.key is 'What is limited, and whose.';
comment on column pabal.limits.tat is 'The theoretical arrival time: when the bucket will be empty again.';

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
comment on table pabal.operators is 'People who use the console.';
comment on column pabal.operators.id is 'The operator.';
comment on column pabal.operators.name is 'What they sign in as; case does not matter.';
comment on column pabal.operators.password_hash is 'Argon2id, with its parameters.';
comment on column pabal.operators.role is 'viewer looks; admin also changes things.';
comment on column pabal.operators.created_at is 'When they were added.';
comment on column pabal.operators.disabled_at is 'Since when they may not sign in.';
comment on column pabal.operators.last_signed_in_at is 'When they last did.';
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
  constraint session_token_is_hashed check (octet_length(token_hash) = 32),
  constraint session_expires_later check (expires_at > created_at)
);
comment on table pabal.operator_sessions is 'Who is signed in to the console, and where.';
comment on column pabal.operator_sessions.token_hash is 'SHA-256 of the cookie.';
comment on column pabal.operator_sessions.operator_id is 'Who.';
comment on column pabal.operator_sessions.csrf is 'What a form of this session must bring back.';
comment on column pabal.operator_sessions.created_at is 'When they signed in.';
comment on column pabal.operator_sessions.expires_at is 'When they must sign in again.';
comment on column pabal.operator_sessions.last_seen_at is 'When they last opened a page.';
comment on column pabal.operator_sessions.client_ip is 'From where.';
comment on column pabal.operator_sessions.user_agent is 'With what.';
create index if not exists idx_operator_sessions_operator_id on pabal.operator_sessions (operator_id);
create index if not exists idx_operator_sessions_expires_at on pabal.operator_sessions (expires_at);

create table if not exists pabal.audit_log (
  id bigint generated always as identity primary key,
  at timestamptz not null default pabal.now(),
  actor text not null,
  action text not null,
  subject text,
  details jsonb not null default '{}',
  client_ip inet,
  request_id text,
  xid xid8 not null default pg_current_xact_id(),
  constraint audit_details_is_object check (jsonb_typeof(details) = 'object')
);
comment on table pabal.audit_log is 'Who did what: written with the deed, never changed. Rows hold ids, never message text.';
comment on column pabal.audit_log.id is 'The order of writing, which is not the order of committing.';
comment on column pabal.audit_log.at is 'When.';
comment on column pabal.audit_log.actor is 'Who: a service, an operator, or the hub.';
comment on column pabal.audit_log.action is 'What, dotted: token.issued, dead_letter.replayed.';
comment on column pabal.audit_log.subject is 'To what.';
comment on column pabal.audit_log.details is 'The facts besides.';
comment on column pabal.audit_log.client_ip is 'From where.';
comment on column pabal.audit_log.request_id is 'Through which request.';
comment on column pabal.audit_log.xid is 'The transaction that wrote it, so that sealing can wait for everything older.';
create index if not exists idx_audit_log_subject on pabal.audit_log (subject, id) where subject is not null;
create index if not exists idx_audit_log_at on pabal.audit_log (at);

create table if not exists pabal.audit_seals (
  id bigint generated always as identity primary key,
  first_id bigint not null,
  last_id bigint not null,
  count bigint not null,
  digest bytea not null,
  previous bytea,
  key_id text not null,
  sealed_at timestamptz not null default pabal.now(),
  constraint seal_spans_rows check (first_id <= last_id and count between 1 and last_id - first_id + 1),
  constraint seals_do_not_fork unique nulls not distinct (previous)
);
comment on table pabal.audit_seals is 'An HMAC chain over the audit log; its key is not in the database, so tampering shows.';
comment on column pabal.audit_seals.id is 'The seal''s place in the chain.';
comment on column pabal.audit_seals.first_id is 'The first row sealed.';
comment on column pabal.audit_seals.last_id is 'The last row sealed.';
comment on column pabal.audit_seals.count is 'How many rows: ids have gaps.';
comment on column pabal.audit_seals.digest is 'The HMAC over the rows and the seal before.';
comment on column pabal.audit_seals.previous is 'The seal before; empty for the first, and nobody has two successors.';
comment on column pabal.audit_seals.key_id is 'Which key made it.';
comment on column pabal.audit_seals.sealed_at is 'When.';

create table if not exists pabal.chores (
  name text primary key,
  last_started_at timestamptz,
  last_finished_at timestamptz,
  last_rows bigint,
  last_error text,
  runs bigint not null default 0
);
comment on table pabal.chores is 'Periodic upkeep: when each chore last ran and what came of it.';
comment on column pabal.chores.name is 'The chore.';
comment on column pabal.chores.last_started_at is 'When somebody last took it up.';
comment on column pabal.chores.last_finished_at is 'When it last came to its end.';
comment on column pabal.chores.last_rows is 'How many rows it touched then.';
comment on column pabal.chores.last_error is 'Why it last failed; empty after a success.';
comment on column pabal.chores.runs is 'How often it ran.';

create table if not exists pabal.workers (
  id text primary key,
  host text not null,
  pid integer not null,
  lanes text[] not null default '{}',
  started_at timestamptz not null default pabal.now(),
  seen_at timestamptz not null default pabal.now(),
  details jsonb not null default '{}'
);
comment on table pabal.workers is 'The processes at work, as they last reported.';
comment on column pabal.workers.id is 'The worker, as processor_id names it.';
comment on column pabal.workers.host is 'Where it runs.';
comment on column pabal.workers.pid is 'Its process there.';
comment on column pabal.workers.lanes is 'The lanes it works on.';
comment on column pabal.workers.started_at is 'When it started.';
comment on column pabal.workers.seen_at is 'When it last reported.';
comment on column pabal.workers.details is 'Its version, its settings, what it holds.';

-- Append only, for the owner and a superuser as well: grants do not bind those two.
create or replace function pabal.refuse_change() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  raise exception '%.% is append-only', tg_table_schema, tg_table_name using errcode = 'insufficient_privilege';
end
$$;
comment on function pabal.refuse_change() is 'Refuses to change or remove what was written once.';
revoke all on function pabal.refuse_change() from public, anon, authenticated;

drop trigger if exists audit_log_append_only on pabal.audit_log;
create trigger audit_log_append_only
  before update or delete or truncate on pabal.audit_log
  for each statement execute function pabal.refuse_change();

drop trigger if exists audit_seals_append_only on pabal.audit_seals;
create trigger audit_seals_append_only
  before update or delete or truncate on pabal.audit_seals
  for each statement execute function pabal.refuse_change();

-- Who may --------------------------------------------------------------------------------------------------------------

alter table pabal.limits enable row level security;
drop policy if exists "limits_service_role_all" on pabal.limits;
create policy "limits_service_role_all" on pabal.limits for all to service_role using (true) with check (true);
revoke all on table pabal.limits from public, anon, authenticated;
grant select, insert, update, delete on table pabal.limits to service_role;

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

alter table pabal.audit_log enable row level security;
drop policy if exists "audit_log_service_role_all" on pabal.audit_log;
create policy "audit_log_service_role_all" on pabal.audit_log for all to service_role using (true) with check (true);
revoke all on table pabal.audit_log from public, anon, authenticated, service_role;
revoke all on sequence pabal.audit_log_id_seq from public, anon, authenticated;
grant select, insert on table pabal.audit_log to service_role;

alter table pabal.audit_seals enable row level security;
drop policy if exists "audit_seals_service_role_all" on pabal.audit_seals;
create policy "audit_seals_service_role_all" on pabal.audit_seals for all to service_role using (true) with check (true);
revoke all on table pabal.audit_seals from public, anon, authenticated, service_role;
revoke all on sequence pabal.audit_seals_id_seq from public, anon, authenticated;
grant select, insert on table pabal.audit_seals to service_role;

alter table pabal.chores enable row level security;
drop policy if exists "chores_service_role_all" on pabal.chores;
create policy "chores_service_role_all" on pabal.chores for all to service_role using (true) with check (true);
revoke all on table pabal.chores from public, anon, authenticated;
grant select, insert, update, delete on table pabal.chores to service_role;

alter table pabal.workers enable row level security;
drop policy if exists "workers_service_role_all" on pabal.workers;
create policy "workers_service_role_all" on pabal.workers for all to service_role using (true) with check (true);
revoke all on table pabal.workers from public, anon, authenticated;
grant select, insert, update, delete on table pabal.workers to service_role;
