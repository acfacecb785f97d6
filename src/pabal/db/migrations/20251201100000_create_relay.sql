-- The relay: accounts of bot owners with their sessions and codes, conversations, messages, replies and open streams.

-- Accounts -------------------------------------------------------------------------------------------------------------

create table if not exists public.accounts (
  id uuid primary key default gen_random_uuid(),
  openclaw_user_id text not null unique,
  -- An account created by a session has no relay token until it is rotated: the default is unique and no SHA-256.
  relay_token_hash text not null unique default 'none:' || gen_random_uuid(),
  rate_limit_per_minute integer default 60,
  created_at timestamptz default pabal.now(),
  disabled_at timestamptz,
  constraint relay_token_hash_form check (relay_token_hash ~ '^([0-9a-f]{64}|none:.+)$'),
  constraint rate_limit_positive check (rate_limit_per_minute > 0)
);
comment on table public.accounts is '계정 (OpenClaw 인스턴스)';
comment on column public.accounts.id is 'Id of the account: one bot owner, one tenant.';
comment on column public.accounts.openclaw_user_id is 'OpenClaw 사용자 식별자';
comment on column public.accounts.relay_token_hash is '인증 토큰 해시';
comment on column public.accounts.rate_limit_per_minute is '분당 요청 한도';
comment on column public.accounts.created_at is 'When it was created.';
comment on column public.accounts.disabled_at is 'When it was disabled; its tokens are refused from then on.';

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
  constraint session_used_by_is_used check (used_by is null or used_at is not null),
  constraint session_paired_was_used check (paired_at is null or used_at is not null),
  constraint session_disconnected_was_paired check (disconnected_at is null or paired_at is not null)
);
comment on table public.relay_sessions is 'Session tokens of clients; pending until a user redeems the pairing code.';
comment on column public.relay_sessions.id is 'Id of the session; the account it creates is named session:<id>.';
comment on column public.relay_sessions.token_hash is 'SHA-256 of the session token in hex. The token is shown once and not stored.';
comment on column public.relay_sessions.code is 'Pairing code, as XXXX-XXXX.';
comment on column public.relay_sessions.account_id is 'The account it belongs to; set when the code is redeemed.';
comment on column public.relay_sessions.client_address is 'Client address.';
comment on column public.relay_sessions.created_at is 'When it was created.';
comment on column public.relay_sessions.expires_at is 'When the code expires; a redeemed session lives on.';
comment on column public.relay_sessions.used_at is 'When the code was redeemed.';
comment on column public.relay_sessions.used_by is 'The conversation that redeemed the code; redeeming it again gets the first answer.';
comment on column public.relay_sessions.paired_at is 'When the pairing was completed; later than used_at if the owner has to approve it.';
comment on column public.relay_sessions.disconnected_at is 'When its last conversation was unpaired; the token stays valid.';
comment on column public.relay_sessions.revoked_at is 'When the token was revoked.';
comment on column public.relay_sessions.last_seen_at is 'When a client last opened a stream with the token.';
create index if not exists relay_sessions_account_idx on public.relay_sessions (account_id) where account_id is not null;
-- The chore that deletes sessions that were never paired.
create index if not exists relay_sessions_unused_idx on public.relay_sessions (expires_at) where account_id is null;
-- The chore that revokes sessions whose pairing was not approved.
create index if not exists relay_sessions_waiting_idx on public.relay_sessions (account_id)
  where account_id is not null and paired_at is null and revoked_at is null;

create table if not exists public.pairing_codes (
  code text primary key,
  account_id uuid not null references public.accounts (id) on delete cascade,
  expires_at timestamptz not null,
  used_at timestamptz,
  used_by text,
  metadata jsonb,
  created_at timestamptz default pabal.now(),
  constraint pairing_code_used_by_is_used check (used_by is null or used_at is not null)
);
comment on table public.pairing_codes is '페어링 코드';
comment on column public.pairing_codes.code is 'The code, as XXXX-XXXX.';
comment on column public.pairing_codes.account_id is 'The account it pairs with.';
comment on column public.pairing_codes.expires_at is 'When it expires.';
comment on column public.pairing_codes.used_at is 'When it was redeemed; a code is redeemed once.';
comment on column public.pairing_codes.used_by is 'The conversation that redeemed it.';
comment on column public.pairing_codes.metadata is 'Metadata of the account owner.';
comment on column public.pairing_codes.created_at is 'When it was created.';
create index if not exists idx_pairing_expires on public.pairing_codes (expires_at);
-- Live codes of an account are counted whenever one is generated.
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
  constraint conversation_pending_has_time check ((state = 'PENDING') = (pending_at is not null)),
  constraint conversation_blocked_has_time check ((state = 'BLOCKED') = (blocked_at is not null)),
  constraint conversation_blocked_by check (
    (state = 'BLOCKED') = (blocked_by is not null) and blocked_by in ('owner', 'operator')
  ),
  constraint conversation_blocked_by_owner_has_account check (blocked_by <> 'owner' or account_id is not null)
  -- Every webhook updates a row here, but no indexed column: with free space in the page the update is HOT.
) with (fillfactor = 80);
comment on table public.conversation_mappings is '대화 매핑 (사용자 ↔ 계정)';
comment on column public.conversation_mappings.conversation_key is 'Channel id, a colon, and user key; the channel id has no colon.';
comment on column public.conversation_mappings.kakao_channel_id is '공유 카카오 채널 ID';
comment on column public.conversation_mappings.plusfriend_user_key is '카카오 사용자 고유 ID (봇 간 안정적)';
comment on column public.conversation_mappings.account_id is 'FK to Account (null if unpaired)';
comment on column public.conversation_mappings.state is 'UNPAIRED, PENDING (redeemed, waits for the owner''s approval), PAIRED or BLOCKED.';
comment on column public.conversation_mappings.last_callback_url is 'Newest callback URL. A bearer capability.';
comment on column public.conversation_mappings.last_callback_url_expires_at is 'When Kakao stops accepting it.';
comment on column public.conversation_mappings.first_seen_at is 'Time of the first webhook.';
comment on column public.conversation_mappings.last_seen_at is 'Time of the newest webhook.';
comment on column public.conversation_mappings.paired_at is 'When the pairing was completed.';
comment on column public.conversation_mappings.pending_at is 'Since when it waits for the owner''s approval.';
comment on column public.conversation_mappings.blocked_at is 'When it was blocked.';
comment on column public.conversation_mappings.blocked_by is 'owner or operator; a block by the owner ends with the owner''s account.';
create index if not exists idx_mappings_account on public.conversation_mappings (account_id);
-- Conversations of an account per state. A webhook changes neither column, so its update stays HOT.
create index if not exists conversation_mappings_state_idx on public.conversation_mappings (account_id, state);
-- The chore that expires pairings that were not approved.
create index if not exists conversation_mappings_pending_idx on public.conversation_mappings (pending_at) where pending_at is not null;
-- The chore that deletes inactive unpaired conversations. By first_seen_at, which never changes; an index on last_seen_at
-- would be written by every webhook.
create index if not exists conversation_mappings_unpaired_idx on public.conversation_mappings (first_seen_at)
  where state = 'UNPAIRED';

-- Deleting an account sets account_id to NULL, and plain SQL may set only the state: the other columns are made to agree.
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
comment on function pabal.settle_conversation() is 'Makes the columns of a conversation agree with its new state, and its state with a deleted account.';
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
comment on table public.pairing_failures is 'Wrong codes entered in a conversation, and the lock they cause.';
comment on column public.pairing_failures.conversation_key is 'The conversation.';
comment on column public.pairing_failures.failures is 'Failures in the current window.';
comment on column public.pairing_failures.since is 'Start of the window.';
comment on column public.pairing_failures.locked_until is 'No code is accepted before this time.';

create table if not exists public.conversation_codes (
  code_hash text primary key,
  conversation_key text not null references public.conversation_mappings (conversation_key) on delete cascade,
  created_at timestamptz not null default pabal.now(),
  expires_at timestamptz not null default pabal.now() + interval '30 minutes',
  opened_at timestamptz,
  cookie_hash text,
  constraint conversation_code_hash_form check (code_hash ~ '^[0-9a-f]{64}$'),
  constraint conversation_code_cookie_hash_form check (cookie_hash ~ '^[0-9a-f]{64}$')
);
comment on table public.conversation_codes is 'Codes that open the page of one conversation.';
comment on column public.conversation_codes.code_hash is 'SHA-256 of the code in hex.';
comment on column public.conversation_codes.conversation_key is 'The conversation.';
comment on column public.conversation_codes.created_at is 'When the user sent /code.';
comment on column public.conversation_codes.expires_at is 'When the code and the cookie expire.';
comment on column public.conversation_codes.opened_at is 'When the page was first opened.';
comment on column public.conversation_codes.cookie_hash is 'SHA-256 in hex of the cookie that the code was exchanged for; a code is exchanged once.';
create index if not exists conversation_codes_conversation_idx on public.conversation_codes (conversation_key);
create index if not exists conversation_codes_expires_idx on public.conversation_codes (expires_at);
create unique index if not exists conversation_codes_cookie_idx on public.conversation_codes (cookie_hash) where cookie_hash is not null;

-- No foreign key: the hash is looked up among the tokens on every page, so rotating or revoking the token ends the session.
create table if not exists pabal.portal_sessions (
  cookie_hash text primary key,
  token_hash text not null,
  created_at timestamptz not null default pabal.now(),
  expires_at timestamptz not null,
  constraint portal_cookie_hash_form check (cookie_hash ~ '^[0-9a-f]{64}$'),
  constraint portal_token_hash_form check (token_hash ~ '^[0-9a-f]{64}$'),
  constraint portal_session_expires_later check (expires_at > created_at)
);
comment on table pabal.portal_sessions is 'Portal sessions of bot owners.';
comment on column pabal.portal_sessions.cookie_hash is 'SHA-256 of the cookie in hex.';
comment on column pabal.portal_sessions.token_hash is 'SHA-256 of the relay or session token the owner signed in with.';
comment on column pabal.portal_sessions.created_at is 'When the owner signed in.';
comment on column pabal.portal_sessions.expires_at is 'When the owner has to sign in again.';
create index if not exists portal_sessions_expires_idx on pabal.portal_sessions (expires_at);

-- Messages -------------------------------------------------------------------------------------------------------------

-- seq is assigned before the transaction commits, so a lower one may become visible later: as an event id of a stream it
-- would run backwards. Streams resume by delivery_seq, which is assigned when a message is claimed.
create sequence if not exists public.inbound_messages_delivery_seq;
comment on sequence public.inbound_messages_delivery_seq is 'Event ids of streams, in the order of delivery.';
revoke all on sequence public.inbound_messages_delivery_seq from public, anon, authenticated;
grant usage, select on sequence public.inbound_messages_delivery_seq to service_role;

create table if not exists public.inbound_messages (
  id uuid primary key default gen_random_uuid(),
  account_id uuid not null references public.accounts (id) on delete cascade,
  conversation_key text not null,
  kakao_payload jsonb not null,
  normalized jsonb not null,
  callback_url text,
  callback_expires_at timestamptz,
  status text not null default 'QUEUED',
  source_event_id text not null,
  created_at timestamptz default pabal.now(),
  delivered_at timestamptz,
  acked_at timestamptz,
  seq bigint generated always as identity,
  channel_id text not null generated always as (split_part(conversation_key, ':', 1)) stored,
  expires_at timestamptz not null default pabal.now() + interval '15 minutes',
  lease uuid,
  leased_until timestamptz,
  held_by text,
  delivery_count integer not null default 0,
  ended_at timestamptz,
  reason text,
  answer jsonb,
  delivery_seq bigint,
  constraint inbound_messages_source_event_id_key unique (channel_id, source_event_id),
  constraint message_conversation_key_form check (conversation_key like '%:%'),
  constraint message_callback_has_deadline check ((callback_url is null) = (callback_expires_at is null)),
  constraint message_status check (status in ('QUEUED', 'DELIVERED', 'ACKED', 'EXPIRED', 'CANCELLED')),
  constraint message_delivered_is_leased check (
    (status = 'DELIVERED') = (lease is not null) and (lease is null) = (leased_until is null)
  ),
  constraint message_delivery_count check (delivery_count >= 0),
  constraint message_acked_has_time check ((status = 'ACKED') = (acked_at is not null)),
  constraint message_ended_has_time check ((status in ('ACKED', 'EXPIRED', 'CANCELLED')) = (ended_at is not null)),
  -- coalesce: a CHECK whose result is NULL passes, so a missing reason would.
  constraint message_ended_has_reason check (
    case status
      when 'ACKED' then coalesce(reason in ('acked', 'answered'), false)
      when 'EXPIRED' then coalesce(reason in ('queue_life'), false)
      when 'CANCELLED' then coalesce(reason in ('unpaired', 'replaced', 'blocked', 'disabled', 'erased', 'cancelled'), false)
      else reason is null
    end
  )
) with (
  fillfactor = 80,
  -- A row is updated three times within a minute and kept for a week: vacuum after few changes.
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_analyze_scale_factor = 0.02
);
comment on table public.inbound_messages is '인바운드 메시지 큐';
comment on column public.inbound_messages.id is 'Id of the message.';
comment on column public.inbound_messages.account_id is 'The account it is for.';
comment on column public.inbound_messages.conversation_key is 'The conversation it was sent in.';
comment on column public.inbound_messages.kakao_payload is 'Body of the webhook, unchanged.';
comment on column public.inbound_messages.normalized is 'userId, text and channelId.';
comment on column public.inbound_messages.callback_url is 'Target of the one reply; NULL if the Kakao block allows no callback. A bearer capability.';
comment on column public.inbound_messages.callback_expires_at is '콜백 URL 만료: 1분 (카카오 제한)';
comment on column public.inbound_messages.status is 'QUEUED, DELIVERED (leased), ACKED, EXPIRED or CANCELLED.';
comment on column public.inbound_messages.source_event_id is 'Identifies a repeated webhook within its channel.';
comment on column public.inbound_messages.created_at is 'When it was received.';
comment on column public.inbound_messages.delivered_at is 'When it was last delivered.';
comment on column public.inbound_messages.acked_at is 'When it was acknowledged or answered.';
comment on column public.inbound_messages.seq is 'Order of arrival.';
comment on column public.inbound_messages.channel_id is 'The channel: the part of the conversation key before the first colon.';
comment on column public.inbound_messages.expires_at is '메시지 큐 TTL: 15분 (설정 가능)';
comment on column public.inbound_messages.lease is 'Fence: a settle that does not present this lease changes nothing.';
comment on column public.inbound_messages.leased_until is 'When the lease expires and the message is due again.';
comment on column public.inbound_messages.held_by is 'The stream, session or poller that holds it or last held it.';
comment on column public.inbound_messages.delivery_count is 'Number of deliveries.';
comment on column public.inbound_messages.ended_at is 'When it ended.';
comment on column public.inbound_messages.reason is 'Why it ended.';
comment on column public.inbound_messages.answer is 'Response to the webhook, repeated if the webhook is.';
comment on column public.inbound_messages.delivery_seq is 'Event id of its last delivery; a stream resumes by it.';

-- The claim: due rows of an account in order of arrival. Also for deleting and listing an account. An update of status
-- is not HOT with it, as with any index that separates held rows from due ones; extending a lease is.
create index if not exists idx_messages_account_status on public.inbound_messages (account_id, status, seq);
-- Callbacks that are about to expire unanswered, which the stall text then uses.
create index if not exists idx_messages_expires on public.inbound_messages (callback_expires_at);
-- Expiry of open messages.
create index if not exists inbound_messages_open_idx on public.inbound_messages (expires_at) where ended_at is null;
-- Held messages of a conversation: later messages go to the same holder. Also for expired leases. Without leased_until,
-- so that a heartbeat writes no index.
create index if not exists inbound_messages_held_idx on public.inbound_messages (conversation_key) where status = 'DELIVERED';
-- The purge.
create index if not exists inbound_messages_ended_idx on public.inbound_messages (ended_at) where ended_at is not null;
-- The page, export and erasure of a conversation.
create index if not exists inbound_messages_conversation_idx on public.inbound_messages (conversation_key, seq);

-- Plain statements of the specification set only the status; the other columns are completed here. Statements that set
-- all of them, as the hub's do, do not fire the trigger.
create or replace function pabal.settle_message() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  if new.status = 'DELIVERED' then
    new.delivered_at := coalesce(new.delivered_at, pabal.now());
    new.lease := coalesce(new.lease, gen_random_uuid());
    new.leased_until := coalesce(new.leased_until, pabal.now() + interval '60 seconds');
  else
    new.lease := null;
    new.leased_until := null;
  end if;
  if new.status in ('QUEUED', 'DELIVERED') then
    new.ended_at := null;
    new.reason := null;
  else
    new.ended_at := coalesce(new.ended_at, pabal.now());
    new.reason := coalesce(new.reason, case new.status when 'ACKED' then 'acked' when 'EXPIRED' then 'queue_life' else 'cancelled' end);
  end if;
  new.acked_at := case when new.status = 'ACKED' then coalesce(new.acked_at, new.ended_at) end;
  return new;
end
$$;
comment on function pabal.settle_message() is 'Completes the columns of a message whose status was set alone.';
revoke all on function pabal.settle_message() from public, anon, authenticated;

drop trigger if exists inbound_messages_settle on public.inbound_messages;
create trigger inbound_messages_settle
  before insert or update on public.inbound_messages
  for each row
  when (
    (new.status = 'DELIVERED') <> (new.lease is not null)
    or (new.status in ('ACKED', 'EXPIRED', 'CANCELLED')) <> (new.ended_at is not null)
    or (new.status = 'ACKED') <> (new.acked_at is not null)
  )
  execute function pabal.settle_message();

-- Replies --------------------------------------------------------------------------------------------------------------

create table if not exists public.relay_replies (
  id uuid primary key default pabal.uuid7(),
  -- Inserting the row claims the callback. Unique, so a message gets at most one POST.
  message_id uuid not null unique references public.inbound_messages (id) on delete cascade,
  account_id uuid not null references public.accounts (id) on delete cascade,
  conversation_key text not null,
  spent_by text,
  outcome text,
  response jsonb,
  state text not null generated always as (
    case when spent_by = 'agent' then outcome when response is not null then 'late' else 'awaited' end
  ) stored,
  fence uuid,
  created_at timestamptz not null default pabal.now(),
  spent_at timestamptz,
  settled_at timestamptz,
  answered_at timestamptz,
  status_code integer,
  kakao jsonb,
  error text,
  kept_until timestamptz,
  shown_at timestamptz,
  shown_with uuid references public.inbound_messages (id) on delete set null,
  constraint reply_spent_by check (spent_by in ('agent', 'hub')),
  constraint reply_outcome check (outcome in ('sending', 'sent', 'refused', 'unknown')),
  constraint reply_spent_has_outcome check (
    (spent_by is null) = (outcome is null) and (spent_by is null) = (fence is null) and (spent_by is null) = (spent_at is null)
  ),
  constraint reply_settled_has_time check (coalesce(outcome <> 'sending', false) = (settled_at is not null)),
  constraint reply_answered_has_time check ((response is null) = (answered_at is null)),
  constraint reply_has_content check (spent_by is not distinct from 'hub' or response is not null),
  constraint reply_late_is_kept check ((state = 'late') = (kept_until is not null)),
  constraint reply_only_late_is_shown check (shown_at is null or kept_until is not null)
);
comment on table public.relay_replies is 'Replies to messages, and the outcome of the one callback of each.';
comment on column public.relay_replies.id is 'Id of the reply; outboundMessageId in the API.';
comment on column public.relay_replies.message_id is 'The message it answers; one reply each.';
comment on column public.relay_replies.account_id is 'The account.';
comment on column public.relay_replies.conversation_key is 'The conversation.';
comment on column public.relay_replies.spent_by is 'Who used the callback: agent or hub; NULL if there was none to use.';
comment on column public.relay_replies.outcome is 'Outcome of the POST: sending, sent, refused or unknown.';
comment on column public.relay_replies.response is 'Answer of the agent; NULL while only the stall text was sent.';
comment on column public.relay_replies.state is 'State of the agent''s answer: sending, sent, refused, unknown, late (kept), or awaited after the stall text.';
comment on column public.relay_replies.fence is 'Fence: only its holder records the outcome.';
comment on column public.relay_replies.created_at is 'When the row was created.';
comment on column public.relay_replies.spent_at is 'When the callback was claimed, before the POST.';
comment on column public.relay_replies.settled_at is 'When the outcome was recorded.';
comment on column public.relay_replies.answered_at is 'When the agent answered.';
comment on column public.relay_replies.status_code is 'HTTP status of Kakao''s response.';
comment on column public.relay_replies.kakao is 'Kakao''s response: taskId, status, message, timestamp.';
comment on column public.relay_replies.error is 'Why the outcome is refused or unknown.';
comment on column public.relay_replies.kept_until is 'Until when a late answer is kept to be shown.';
comment on column public.relay_replies.shown_at is 'When the late answer was shown.';
comment on column public.relay_replies.shown_with is 'The later message in whose reply it was shown.';
create index if not exists relay_replies_account_idx on public.relay_replies (account_id);
-- Late answers of a conversation, read on every reply.
create index if not exists relay_replies_late_idx on public.relay_replies (conversation_key, answered_at)
  where kept_until is not null and shown_at is null;
-- POSTs that a crash left open; they become unknown and are not repeated.
create index if not exists relay_replies_sending_idx on public.relay_replies (spent_at) where outcome = 'sending';
-- Deleting a message clears shown_with.
create index if not exists relay_replies_shown_idx on public.relay_replies (shown_with) where shown_with is not null;
-- Failed callbacks, newest first.
create index if not exists relay_replies_failed_idx on public.relay_replies (settled_at) where outcome in ('refused', 'unknown');

create table if not exists public.command_answers (
  channel_id text not null,
  source_event_id text not null,
  conversation_key text not null references public.conversation_mappings (conversation_key) on delete cascade,
  answer jsonb,
  created_at timestamptz not null default pabal.now(),
  primary key (channel_id, source_event_id)
);
comment on table public.command_answers is 'Responses to chat commands, repeated if the webhook is.';
comment on column public.command_answers.channel_id is 'The channel.';
comment on column public.command_answers.source_event_id is 'Identifies a repeated webhook within its channel.';
comment on column public.command_answers.conversation_key is 'The conversation.';
comment on column public.command_answers.answer is 'The response; NULL only while the command runs.';
comment on column public.command_answers.created_at is 'When the command was received.';
create index if not exists command_answers_conversation_idx on public.command_answers (conversation_key);
create index if not exists command_answers_created_at_idx on public.command_answers (created_at);

-- Streams --------------------------------------------------------------------------------------------------------------

create table if not exists public.relay_control_events (
  id bigint primary key generated always as identity,
  kind text not null,
  account_id uuid,
  session_id uuid,
  data jsonb not null default '{}',
  created_at timestamptz not null default pabal.now(),
  constraint relay_control_event_kind check (kind in ('paired', 'unpaired', 'disabled', 'revoked')),
  constraint relay_control_event_has_target check (account_id is not null or session_id is not null)
);
comment on table public.relay_control_events is 'Events for open streams that are not messages; kept for minutes.';
comment on column public.relay_control_events.id is 'Id of the event.';
comment on column public.relay_control_events.kind is 'paired, unpaired, disabled (the account) or revoked (a token of it).';
comment on column public.relay_control_events.account_id is 'Account whose streams get it; it may be deleted already.';
comment on column public.relay_control_events.session_id is 'Only streams of this session; NULL means all of the account.';
comment on column public.relay_control_events.data is 'Data of the event.';
comment on column public.relay_control_events.created_at is 'When it happened.';
create index if not exists relay_control_events_created_at_idx on public.relay_control_events (created_at);

-- Several clients may use one token. Which of its open streams a reconnecting client has left is decided by the ids it has
-- received and, for a stream that received none, by the id that stream started with.
create table if not exists public.relay_streams (
  id uuid primary key,
  account_id uuid references public.accounts (id) on delete cascade,
  token_id uuid not null,
  opened_at timestamptz not null default pabal.now(),
  alive_until timestamptz not null,
  after_id bigint
);
comment on table public.relay_streams is 'Open streams of all processes.';
comment on column public.relay_streams.id is 'Id of the stream.';
comment on column public.relay_streams.account_id is 'Account whose messages it gets; NULL until its session is paired.';
comment on column public.relay_streams.token_id is 'The session that opened it, or the account if opened with its relay token.';
comment on column public.relay_streams.opened_at is 'When it was opened.';
comment on column public.relay_streams.alive_until is 'Extended by heartbeats; after this time the stream and its process are gone.';
comment on column public.relay_streams.after_id is 'Last event id the client had when it connected; NULL if it sent none.';
create index if not exists relay_streams_account_idx on public.relay_streams (account_id);
create index if not exists relay_streams_token_idx on public.relay_streams (token_id);

-- Privileges -----------------------------------------------------------------------------------------------------------

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

alter table pabal.portal_sessions enable row level security;
drop policy if exists "portal_sessions_service_role_all" on pabal.portal_sessions;
create policy "portal_sessions_service_role_all" on pabal.portal_sessions for all to service_role using (true) with check (true);
revoke all on table pabal.portal_sessions from public, anon, authenticated;
grant select, insert, update, delete on table pabal.portal_sessions to service_role;

alter table public.inbound_messages enable row level security;
drop policy if exists "inbound_messages_service_role_all" on public.inbound_messages;
create policy "inbound_messages_service_role_all" on public.inbound_messages for all to service_role using (true) with check (true);
revoke all on table public.inbound_messages from public, anon, authenticated;
grant select, insert, update, delete on table public.inbound_messages to service_role;
revoke all on sequence public.inbound_messages_seq_seq from public, anon, authenticated;

alter table public.relay_replies enable row level security;
drop policy if exists "relay_replies_service_role_all" on public.relay_replies;
create policy "relay_replies_service_role_all" on public.relay_replies for all to service_role using (true) with check (true);
revoke all on table public.relay_replies from public, anon, authenticated;
grant select, insert, update, delete on table public.relay_replies to service_role;

alter table public.command_answers enable row level security;
drop policy if exists "command_answers_service_role_all" on public.command_answers;
create policy "command_answers_service_role_all" on public.command_answers for all to service_role using (true) with check (true);
revoke all on table public.command_answers from public, anon, authenticated;
grant select, insert, update, delete on table public.command_answers to service_role;

alter table public.relay_control_events enable row level security;
drop policy if exists "relay_control_events_service_role_all" on public.relay_control_events;
create policy "relay_control_events_service_role_all" on public.relay_control_events for all to service_role using (true) with check (true);
revoke all on table public.relay_control_events from public, anon, authenticated;
grant select, insert, update, delete on table public.relay_control_events to service_role;
revoke all on sequence public.relay_control_events_id_seq from public, anon, authenticated;

alter table public.relay_streams enable row level security;
drop policy if exists "relay_streams_service_role_all" on public.relay_streams;
create policy "relay_streams_service_role_all" on public.relay_streams for all to service_role using (true) with check (true);
revoke all on table public.relay_streams from public, anon, authenticated;
grant select, insert, update, delete on table public.relay_streams to service_role;
