-- name: list_all_conversations
-- For operators.
select conversation_key, plusfriend_user_key, account_id, state, paired_at, last_seen_at, blocked_by
from public.conversation_mappings
where conversation_key > coalesce(:after::text, '')
order by conversation_key
limit :limit;

-- name: list_account_conversations
-- Apart from list_all_conversations: one plan for both would scan the conversations of all accounts.
select conversation_key, plusfriend_user_key, account_id, state, paired_at, last_seen_at, blocked_by
from public.conversation_mappings
where account_id = :account and conversation_key > coalesce(:after::text, '')
order by conversation_key
limit :limit;

-- name: lock_conversation
-- Another account's conversation is not found.
select conversation_key, plusfriend_user_key, account_id, state, paired_at, last_seen_at, blocked_by
from public.conversation_mappings
where conversation_key = :conversation and (:account::uuid is null or account_id = :account)
for no key update;

-- name: set_conversation_state
-- A trigger sets the columns that follow from the state.
update public.conversation_mappings
set state = :state, blocked_by = :blocked_by
where conversation_key = :conversation and (account_id = :account or (account_id is null and :account::uuid is null))
returning conversation_key, plusfriend_user_key, account_id, state, paired_at, last_seen_at, blocked_by;

-- name: is_approval_overdue
select pending_at <= pabal.now() - :approval::interval
from public.conversation_mappings
where conversation_key = :conversation and account_id = :account;

-- name: expire_pending_pairings
update public.conversation_mappings c
set state = 'UNPAIRED'
from (
    select conversation_key from public.conversation_mappings
    where pending_at <= pabal.now() - :approval::interval
    order by pending_at
    limit :batch
    for no key update skip locked
) late
where c.conversation_key = late.conversation_key;

-- name: purge_unpaired_conversations
-- By first_seen_at, or when it was unpaired; not by the newest message: an unpaired conversation holds nothing, and the next
-- message creates it again.
delete from public.conversation_mappings
where conversation_key in (
    select c.conversation_key
    from public.conversation_mappings c
    where c.state = 'UNPAIRED' and c.first_seen_at < pabal.now() - :keep::interval
      and (c.unpaired_at is null or c.unpaired_at < pabal.now() - :keep::interval)
      and not exists (select from public.inbound_messages m where m.conversation_key = c.conversation_key)
      and not exists (select from public.pairing_failures f where f.conversation_key = c.conversation_key and f.locked_until > pabal.now())
    order by c.first_seen_at
    limit :batch
    for update skip locked
);

-- name: find_waiting_session
-- Its stream was opened before the session had an account.
select id from public.relay_sessions where account_id = :account and paired_at is null and revoked_at is null;

-- name: note_pairing_verified
insert into pabal.relay_event_outbox (event_type, payload)
values (
    'relay.pairing.verified', jsonb_build_object('account_id', :account::uuid, 'conversation_key', :conversation::text)
);

-- name: cancel_messages
-- Locked in the order of ids, as settling does.
update public.inbound_messages m
set status = 'CANCELLED', ended_at = pabal.now(), reason = :reason, lease = null, leased_until = null
from (
    select id from public.inbound_messages
    where account_id = :account and status in ('QUEUED', 'DELIVERED')
      and (:conversation::text is null or conversation_key = :conversation)
    order by id
    for no key update
) open
where m.id = open.id;
