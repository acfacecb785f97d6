-- The relay's own pages: what lets a browser in, and the roads its lists are read by.

-- A user's page: the code of /code is swapped once for a cookie, which ends with the code's time.
alter table public.conversation_codes add column if not exists cookie_hash text
  constraint conversation_code_cookie_hash_form check (cookie_hash ~ '^[0-9a-f]{64}$');
comment on column public.conversation_codes.cookie_hash is 'SHA-256 in hex of the cookie the code was swapped for, once it was.';
create unique index if not exists conversation_codes_cookie_idx on public.conversation_codes (cookie_hash) where cookie_hash is not null;

-- The owner's portal. No reference to whose token it is: the hash is looked for among the tokens at every page, so a token
-- that was rotated or revoked has ended what it opened.
create table if not exists pabal.portal_sessions (
  cookie_hash text primary key,
  token_hash text not null,
  created_at timestamptz not null default pabal.now(),
  expires_at timestamptz not null,
  constraint portal_cookie_hash_form check (cookie_hash ~ '^[0-9a-f]{64}$'),
  constraint portal_token_hash_form check (token_hash ~ '^[0-9a-f]{64}$'),
  constraint portal_session_expires_later check (expires_at > created_at)
);
comment on table pabal.portal_sessions is 'Bot owners who are signed in to the portal.';
comment on column pabal.portal_sessions.cookie_hash is 'SHA-256 of the cookie in hex.';
comment on column pabal.portal_sessions.token_hash is 'SHA-256 of the relay or session token they have shown.';
comment on column pabal.portal_sessions.created_at is 'When they signed in.';
comment on column pabal.portal_sessions.expires_at is 'When they must sign in again.';
create index if not exists portal_sessions_expires_idx on pabal.portal_sessions (expires_at);

alter table pabal.portal_sessions enable row level security;
drop policy if exists "portal_sessions_service_role_all" on pabal.portal_sessions;
create policy "portal_sessions_service_role_all" on pabal.portal_sessions for all to service_role using (true) with check (true);
revoke all on table pabal.portal_sessions from public, anon, authenticated;
grant select, insert, update, delete on table pabal.portal_sessions to service_role;

-- How many of an account's conversations are in each state. A webhook writes neither column, and stays HOT.
create index if not exists conversation_mappings_state_idx on public.conversation_mappings (account_id, state);
-- Callbacks that failed, the newest first: few among all.
create index if not exists relay_replies_failed_idx on public.relay_replies (settled_at) where outcome in ('refused', 'unknown');
