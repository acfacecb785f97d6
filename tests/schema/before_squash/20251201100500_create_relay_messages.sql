-- The relay's queue: messages that wait for a bot owner, and what was answered.

-- Messages -------------------------------------------------------------------------------------------------------------

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
  constraint inbound_messages_source_event_id_key unique (channel_id, source_event_id),
  constraint message_conversation_key_form check (conversation_key like '%:%'),
  constraint message_callback_and_deadline check ((callback_url is null) = (callback_expires_at is null)),
  constraint message_status check (status in ('QUEUED', 'DELIVERED', 'ACKED', 'EXPIRED', 'CANCELLED')),
  constraint message_delivered_is_leased check (
    (status = 'DELIVERED') = (lease is not null) and (lease is null) = (leased_until is null)
  ),
  constraint message_delivery_count check (delivery_count >= 0),
  constraint message_acked_says_when check ((status = 'ACKED') = (acked_at is not null)),
  constraint message_ended_says_when check ((status in ('ACKED', 'EXPIRED', 'CANCELLED')) = (ended_at is not null)),
  -- coalesce: a CHECK that comes out NULL would let a missing reason pass.
  constraint message_ended_says_why check (
    case status
      when 'ACKED' then coalesce(reason in ('acked', 'answered'), false)
      when 'EXPIRED' then coalesce(reason in ('queue_life'), false)
      when 'CANCELLED' then coalesce(reason in ('unpaired', 'replaced', 'blocked', 'disabled', 'erased', 'cancelled'), false)
      else reason is null
    end
  )
) with (
  fillfactor = 80,
  -- Rows are touched three times in a minute and stay a week: vacuum by what changed, not by what is there.
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_analyze_scale_factor = 0.02
);
comment on table public.inbound_messages is '인바운드 메시지 큐';
comment on column public.inbound_messages.id is 'The message.';
comment on column public.inbound_messages.account_id is 'Whose queue it waits in.';
comment on column public.inbound_messages.conversation_key is 'Who wrote it, on which channel.';
comment on column public.inbound_messages.kakao_payload is 'The webhook''s body, untouched.';
comment on column public.inbound_messages.normalized is 'userId, text and channelId.';
comment on column public.inbound_messages.callback_url is 'Where the one answer goes; empty where the block has no callback right. A bearer capability.';
comment on column public.inbound_messages.callback_expires_at is '콜백 URL 만료: 1분 (카카오 제한)';
comment on column public.inbound_messages.status is 'QUEUED, DELIVERED (leased), ACKED, EXPIRED or CANCELLED.';
comment on column public.inbound_messages.source_event_id is 'What makes a repeated webhook a repeat, within its channel.';
comment on column public.inbound_messages.created_at is 'When it was accepted.';
comment on column public.inbound_messages.delivered_at is 'When it was last handed out.';
comment on column public.inbound_messages.acked_at is 'When it was acknowledged or answered.';
comment on column public.inbound_messages.seq is 'Arrival order.';
comment on column public.inbound_messages.channel_id is 'The channel: what stands before the first colon of the conversation key.';
comment on column public.inbound_messages.expires_at is '메시지 큐 TTL: 15분 (설정 가능)';
comment on column public.inbound_messages.lease is 'The fence: whoever lost it settles nothing.';
comment on column public.inbound_messages.leased_until is 'When the message falls due again by itself.';
comment on column public.inbound_messages.held_by is 'The stream, session or poller that holds it, or held it last.';
comment on column public.inbound_messages.delivery_count is 'How often it was handed out.';
comment on column public.inbound_messages.ended_at is 'When it ended.';
comment on column public.inbound_messages.reason is 'Why it ended as it did.';
comment on column public.inbound_messages.answer is 'What the webhook was told, to be told again to its repeat.';

-- The claim's own index: the seed's columns, then arrival order. Equal account and status lead to due rows only, whatever
-- has finished or is held; deleting an account and listing one also go by it. Moving `status` is never HOT with it, which
-- any index that knows held rows from due ones costs; extending a lease touches no index and stays HOT.
create index if not exists idx_messages_account_status on public.inbound_messages (account_id, status, seq);
-- Callbacks about to die unanswered, on which the hub then spends its own short text.
create index if not exists idx_messages_expires on public.inbound_messages (callback_expires_at);
-- The end of queue life: open rows only.
create index if not exists inbound_messages_open_idx on public.inbound_messages (expires_at) where ended_at is null;
-- What is held, by conversation: later messages go where earlier ones are, and ended leases are looked for here. Leaves
-- leased_until out, so that a heartbeat writes no index.
create index if not exists inbound_messages_held_idx on public.inbound_messages (conversation_key) where status = 'DELIVERED';
-- The purge, by the end.
create index if not exists inbound_messages_ended_idx on public.inbound_messages (ended_at) where ended_at is not null;
-- A conversation's own page, its export and its erasure.
create index if not exists inbound_messages_conversation_idx on public.inbound_messages (conversation_key, seq);

-- The seed's plain statements name only the status; the rest is filled in here. A statement that says everything, as the
-- hub's do, does not come by.
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
comment on function pabal.settle_message() is 'Completes a message whose status was set by a statement that named nothing else.';
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
  -- Making this row is the claim on the callback: unique, so at most one POST is ever made for a message.
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
  constraint reply_settled_says_when check (coalesce(outcome <> 'sending', false) = (settled_at is not null)),
  constraint reply_answered_says_when check ((response is null) = (answered_at is null)),
  constraint reply_has_something check (spent_by is not distinct from 'hub' or response is not null),
  constraint reply_late_is_kept check ((state = 'late') = (kept_until is not null)),
  constraint reply_only_late_is_shown check (shown_at is null or kept_until is not null)
);
comment on table public.relay_replies is 'What was answered to a message, and what became of its one callback.';
comment on column public.relay_replies.id is 'The reply; outboundMessageId on the wire.';
comment on column public.relay_replies.message_id is 'What it answers: one reply each.';
comment on column public.relay_replies.account_id is 'Whose reply it is.';
comment on column public.relay_replies.conversation_key is 'Who it is for.';
comment on column public.relay_replies.spent_by is 'Who spent the callback: agent or hub; empty when there was none left to spend.';
comment on column public.relay_replies.outcome is 'What became of the one POST: sending, sent, refused or unknown.';
comment on column public.relay_replies.response is 'The agent''s answer; empty while the hub''s short text is all there is.';
comment on column public.relay_replies.state is 'The agent''s answer: sending, sent, refused, unknown, late (kept), or still awaited after the hub''s text.';
comment on column public.relay_replies.fence is 'Whoever does not hold it records no outcome.';
comment on column public.relay_replies.created_at is 'When the first of this happened.';
comment on column public.relay_replies.spent_at is 'When the callback was taken, before the POST.';
comment on column public.relay_replies.settled_at is 'When its outcome was known, or known to be unknown.';
comment on column public.relay_replies.answered_at is 'When the agent answered.';
comment on column public.relay_replies.status_code is 'Kakao''s HTTP status.';
comment on column public.relay_replies.kakao is 'Kakao''s own answer: taskId, status, message, timestamp.';
comment on column public.relay_replies.error is 'Why it was refused or is unknown.';
comment on column public.relay_replies.kept_until is 'Until when a late answer may still be shown.';
comment on column public.relay_replies.shown_at is 'When it was shown.';
comment on column public.relay_replies.shown_with is 'The later message in whose answer it was shown.';
create index if not exists relay_replies_account_idx on public.relay_replies (account_id);
-- Asked at every answer: does this conversation still wait for a late one?
create index if not exists relay_replies_late_idx on public.relay_replies (conversation_key, answered_at)
  where kept_until is not null and shown_at is null;
-- POSTs a crash left open; they become unknown and are never made again.
create index if not exists relay_replies_sending_idx on public.relay_replies (spent_at) where outcome = 'sending';
-- Deleting messages must not read every reply for shown_with.
create index if not exists relay_replies_shown_idx on public.relay_replies (shown_with) where shown_with is not null;

-- Who may --------------------------------------------------------------------------------------------------------------

alter table public.inbound_messages enable row level security;
drop policy if exists "inbound_messages_service_role_all" on public.inbound_messages;
create policy "inbound_messages_service_role_all" on public.inbound_messages for all to service_role using (true) with check (true);
revoke all on table public.inbound_messages from public, anon, authenticated;
revoke all on sequence public.inbound_messages_seq_seq from public, anon, authenticated;
grant select, insert, update, delete on table public.inbound_messages to service_role;

alter table public.relay_replies enable row level security;
drop policy if exists "relay_replies_service_role_all" on public.relay_replies;
create policy "relay_replies_service_role_all" on public.relay_replies for all to service_role using (true) with check (true);
revoke all on table public.relay_replies from public, anon, authenticated;
grant select, insert, update, delete on table public.relay_replies to service_role;
