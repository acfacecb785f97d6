-- The relay's people: bot owners with their sessions and codes, and the conversations paired with them.

-- Owners ---------------------------------------------------------------------------------------------------------------

create table if not exists public.accounts (
  id uuid primary key default gen_random_uuid(),
  openclaw_user_id text not null unique,
  -- An account made by a session has no relay token until one is rotated in: this default is unique, and no SHA-256.
  relay_token_hash text not null unique default 'none:' || gen_random_uuid(),
  rate_limit_per_minute integer default 60,
  created_at timestamptz default pabal.now(),
  disabled_at timestamptz,
  constraint relay_token_hash_form check (relay_token_hash ~ '^([0-9a-f]{64}|none:.+)$'),
  constraint rate_limit_positive check (rate_limit_per_minute > 0)
);
comment on table public.accounts is '계정 (OpenClaw 인스턴스)';
comment on column public.accounts.id is 'The account: one bot owner, one tenant.';
comment on column public.accounts.openclaw_user_id is 'OpenClaw 사용자 식별자';
comment on column public.accounts.relay_token_hash is '인증 토큰 해시';
comment on column public.accounts.rate_limit_per_minute is '분당 요청 한도';
comment on column public.accounts.created_at is 'When it was made.';
comment on column public.accounts.disabled_at is 'Since when its tokens are refused; empty means it works.';

create table if not exists public.relay_sessions (
  id uuid primary key default pabal.uuid7(),
  token_hash text not null unique,
  code text not null unique,
  account_id uuid references public.accounts (id) on delete cascade,
  client_address inet,
  created_at timestamptz not null default pabal.now(),
  expires_at timestamptz not null default pabal.now() + interval '5 minutes',
  used_at timestamptz,
  used_by text,
  paired_at timestamptz,
  disconnected_at timestamptz,
  revoked_at timestamptz,
  last_seen_at timestamptz,
  constraint session_token_hash_form check (token_hash ~ '^[0-9a-f]{64}$'),
  constraint session_code_form check (code ~ '^[A-HJ-NP-Z2-9]{4}-[A-HJ-NP-Z2-9]{4}$'),
  constraint session_used_has_account check ((used_at is null) = (account_id is null)),
  constraint session_used_by_somebody_once check (used_by is null or used_at is not null),
  constraint session_paired_was_used check (paired_at is null or used_at is not null),
  constraint session_disconnected_was_paired check (disconnected_at is null or paired_at is not null)
);
comment on table public.relay_sessions is 'One client''s token, pending until a user redeems its code.';
comment on column public.relay_sessions.id is 'The session; the account it makes is called session:<id>.';
comment on column public.relay_sessions.token_hash is 'SHA-256 of the session token in hex; the token is shown once and kept nowhere.';
comment on column public.relay_sessions.code is 'The pairing code shown to the client, as XXXX-XXXX.';
comment on column public.relay_sessions.account_id is 'The account it belongs to, once the code was redeemed.';
comment on column public.relay_sessions.client_address is 'Who asked for it.';
comment on column public.relay_sessions.created_at is 'When it was made.';
comment on column public.relay_sessions.expires_at is 'Until when the code may be redeemed; a redeemed session outlives it.';
comment on column public.relay_sessions.used_at is 'When the code was redeemed.';
comment on column public.relay_sessions.used_by is 'The conversation that redeemed it: asking again, it gets the first answer.';
comment on column public.relay_sessions.paired_at is 'When the pairing stood; later than used_at where an owner approves.';
comment on column public.relay_sessions.disconnected_at is 'When its last conversation left; the token lives on.';
comment on column public.relay_sessions.revoked_at is 'When the token died.';
comment on column public.relay_sessions.last_seen_at is 'When a client last opened a stream with it.';
create index if not exists relay_sessions_account_idx on public.relay_sessions (account_id) where account_id is not null;
-- For the chore that deletes sessions nobody paired.
create index if not exists relay_sessions_unused_idx on public.relay_sessions (expires_at) where account_id is null;

create table if not exists public.pairing_codes (
  code text primary key,
  account_id uuid not null references public.accounts (id) on delete cascade,
  expires_at timestamptz not null,
  used_at timestamptz,
  used_by text,
  metadata jsonb,
  created_at timestamptz default pabal.now(),
  constraint pairing_code_used_by_somebody_once check (used_by is null or used_at is not null)
);
comment on table public.pairing_codes is '페어링 코드';
comment on column public.pairing_codes.code is 'The code, as XXXX-XXXX.';
comment on column public.pairing_codes.account_id is 'The account it connects to.';
comment on column public.pairing_codes.expires_at is 'Until when it may be redeemed.';
comment on column public.pairing_codes.used_at is 'When it was redeemed: once.';
comment on column public.pairing_codes.used_by is 'The conversation that redeemed it.';
comment on column public.pairing_codes.metadata is 'What the owner wrote on it.';
comment on column public.pairing_codes.created_at is 'When it was made.';
create index if not exists idx_pairing_expires on public.pairing_codes (expires_at);
-- An account's live codes are counted at every generate.
create index if not exists pairing_codes_account_idx on public.pairing_codes (account_id);

-- Conversations --------------------------------------------------------------------------------------------------------

create table if not exists public.conversation_mappings (
  conversation_key text primary key,
  kakao_channel_id text not null,
  plusfriend_user_key text not null,
  account_id uuid references public.accounts (id) on delete set null,
  state text not null default 'UNPAIRED',
  last_callback_url text,
  last_callback_url_expires_at timestamptz,
  first_seen_at timestamptz default pabal.now(),
  last_seen_at timestamptz default pabal.now(),
  paired_at timestamptz,
  pending_at timestamptz,
  blocked_at timestamptz,
  blocked_by text,
  unique (kakao_channel_id, plusfriend_user_key),
  constraint conversation_key_form check (conversation_key = kakao_channel_id || ':' || plusfriend_user_key),
  constraint conversation_state check (state in ('UNPAIRED', 'PENDING', 'PAIRED', 'BLOCKED')),
  constraint conversation_unpaired check (state <> 'UNPAIRED' or (account_id is null and paired_at is null)),
  constraint conversation_paired check (state <> 'PAIRED' or (account_id is not null and paired_at is not null)),
  constraint conversation_pending check (state <> 'PENDING' or (account_id is not null and paired_at is null)),
  constraint conversation_pending_says_when check ((state = 'PENDING') = (pending_at is not null)),
  constraint conversation_blocked_says_when check ((state = 'BLOCKED') = (blocked_at is not null)),
  constraint conversation_blocked_by check (
    (state = 'BLOCKED') = (blocked_by is not null) and blocked_by in ('owner', 'operator')
  ),
  constraint conversation_owner_who_blocked check (blocked_by <> 'owner' or account_id is not null)
  -- Every webhook updates a row here, and only columns no index mentions: with room in the page each update is HOT.
) with (fillfactor = 80);
comment on table public.conversation_mappings is '대화 매핑 (사용자 ↔ 계정)';
comment on column public.conversation_mappings.conversation_key is 'The channel and the user, joined by a colon; split on the first.';
comment on column public.conversation_mappings.kakao_channel_id is '공유 카카오 채널 ID';
comment on column public.conversation_mappings.plusfriend_user_key is '카카오 사용자 고유 ID (봇 간 안정적)';
comment on column public.conversation_mappings.account_id is 'FK to Account (null if unpaired)';
comment on column public.conversation_mappings.state is 'UNPAIRED, PENDING (redeemed, the owner''s approval awaited), PAIRED or BLOCKED.';
comment on column public.conversation_mappings.last_callback_url is 'The newest callback URL; a bearer capability.';
comment on column public.conversation_mappings.last_callback_url_expires_at is 'When Kakao stops taking it.';
comment on column public.conversation_mappings.first_seen_at is 'The first webhook.';
comment on column public.conversation_mappings.last_seen_at is 'The newest webhook.';
comment on column public.conversation_mappings.paired_at is 'When the pairing stood.';
comment on column public.conversation_mappings.pending_at is 'Since when the owner''s approval is awaited.';
comment on column public.conversation_mappings.blocked_at is 'Since when it is blocked.';
comment on column public.conversation_mappings.blocked_by is 'owner or operator; an owner''s block ends with the owner''s account.';
create index if not exists idx_mappings_account on public.conversation_mappings (account_id);
-- For the chore that takes back what no owner approved.
create index if not exists conversation_mappings_pending_idx on public.conversation_mappings (pending_at) where pending_at is not null;

-- Deleting an account sets account_id to NULL, and a plain statement may name only the state: both leave the rest of the
-- row saying something else.
create or replace function pabal.settle_conversation() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  if old.account_id is not null and new.account_id is null
     and (new.state in ('PENDING', 'PAIRED') or (new.state = 'BLOCKED' and new.blocked_by = 'owner')) then
    new.state := 'UNPAIRED';
  end if;
  if new.state = 'UNPAIRED' then
    new.account_id := null;
  end if;
  if new.state in ('UNPAIRED', 'PENDING') then
    new.paired_at := null;
  elsif new.state = 'PAIRED' then
    new.paired_at := coalesce(new.paired_at, pabal.now());
  end if;
  new.pending_at := case when new.state = 'PENDING' then coalesce(new.pending_at, pabal.now()) end;
  new.blocked_at := case when new.state = 'BLOCKED' then coalesce(new.blocked_at, pabal.now()) end;
  new.blocked_by := case when new.state = 'BLOCKED' then coalesce(new.blocked_by, 'operator') end;
  return new;
end
$$;
comment on function pabal.settle_conversation() is 'Makes the rest of a conversation agree with its new state, and its state with a lost account.';
revoke all on function pabal.settle_conversation() from public, anon, authenticated;

drop trigger if exists conversation_mappings_settle on public.conversation_mappings;
create trigger conversation_mappings_settle
  before update on public.conversation_mappings
  for each row
  when (new.state <> old.state or new.account_id is distinct from old.account_id)
  execute function pabal.settle_conversation();

create table if not exists public.pairing_failures (
  conversation_key text primary key references public.conversation_mappings (conversation_key) on delete cascade,
  failures integer not null default 1,
  since timestamptz not null default pabal.now(),
  locked_until timestamptz,
  constraint pairing_failures_counted check (failures > 0)
);
comment on table public.pairing_failures is 'Wrong codes typed in a conversation, and the lock they lead to.';
comment on column public.pairing_failures.conversation_key is 'Where they were typed.';
comment on column public.pairing_failures.failures is 'How many in this window.';
comment on column public.pairing_failures.since is 'When the window began.';
comment on column public.pairing_failures.locked_until is 'Until when no code is looked at.';

create table if not exists public.conversation_codes (
  code_hash text primary key,
  conversation_key text not null references public.conversation_mappings (conversation_key) on delete cascade,
  created_at timestamptz not null default pabal.now(),
  expires_at timestamptz not null default pabal.now() + interval '30 minutes',
  opened_at timestamptz,
  constraint conversation_code_hash_form check (code_hash ~ '^[0-9a-f]{64}$')
);
comment on table public.conversation_codes is 'Codes that open the page of one conversation, and of no other.';
comment on column public.conversation_codes.code_hash is 'SHA-256 of the code in hex.';
comment on column public.conversation_codes.conversation_key is 'The conversation it opens.';
comment on column public.conversation_codes.created_at is 'When /code was typed.';
comment on column public.conversation_codes.expires_at is 'Until when it opens the page.';
comment on column public.conversation_codes.opened_at is 'When the page was first opened.';
create index if not exists conversation_codes_conversation_idx on public.conversation_codes (conversation_key);
create index if not exists conversation_codes_expires_idx on public.conversation_codes (expires_at);

-- Who may --------------------------------------------------------------------------------------------------------------

alter table public.accounts enable row level security;
drop policy if exists "accounts_service_role_all" on public.accounts;
create policy "accounts_service_role_all" on public.accounts for all to service_role using (true) with check (true);
revoke all on table public.accounts from public, anon, authenticated;
grant select, insert, update, delete on table public.accounts to service_role;

alter table public.relay_sessions enable row level security;
drop policy if exists "relay_sessions_service_role_all" on public.relay_sessions;
create policy "relay_sessions_service_role_all" on public.relay_sessions for all to service_role using (true) with check (true);
revoke all on table public.relay_sessions from public, anon, authenticated;
grant select, insert, update, delete on table public.relay_sessions to service_role;

alter table public.pairing_codes enable row level security;
drop policy if exists "pairing_codes_service_role_all" on public.pairing_codes;
create policy "pairing_codes_service_role_all" on public.pairing_codes for all to service_role using (true) with check (true);
revoke all on table public.pairing_codes from public, anon, authenticated;
grant select, insert, update, delete on table public.pairing_codes to service_role;

alter table public.conversation_mappings enable row level security;
drop policy if exists "conversation_mappings_service_role_all" on public.conversation_mappings;
create policy "conversation_mappings_service_role_all" on public.conversation_mappings for all to service_role using (true) with check (true);
revoke all on table public.conversation_mappings from public, anon, authenticated;
grant select, insert, update, delete on table public.conversation_mappings to service_role;

alter table public.pairing_failures enable row level security;
drop policy if exists "pairing_failures_service_role_all" on public.pairing_failures;
create policy "pairing_failures_service_role_all" on public.pairing_failures for all to service_role using (true) with check (true);
revoke all on table public.pairing_failures from public, anon, authenticated;
grant select, insert, update, delete on table public.pairing_failures to service_role;

alter table public.conversation_codes enable row level security;
drop policy if exists "conversation_codes_service_role_all" on public.conversation_codes;
create policy "conversation_codes_service_role_all" on public.conversation_codes for all to service_role using (true) with check (true);
revoke all on table public.conversation_codes from public, anon, authenticated;
grant select, insert, update, delete on table public.conversation_codes to service_role;
