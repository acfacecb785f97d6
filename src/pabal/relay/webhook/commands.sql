-- name: lock_or_create_conversation
-- Locks the row: commands of one user run one after the other, and no message of the user is queued meanwhile.
insert into public.conversation_mappings as c (conversation_key, kakao_channel_id, plusfriend_user_key)
values (:conversation, :channel, :user)
on conflict (conversation_key) do update set last_seen_at = c.last_seen_at
returning conversation_key, plusfriend_user_key, account_id, state, paired_at, last_seen_at, blocked_by;

-- name: insert_command
insert into public.command_answers (channel_id, source_event_id, conversation_key)
values (:channel, :source_event_id, :conversation)
on conflict (channel_id, source_event_id) do nothing;

-- name: find_command_response
select answer from public.command_answers
where channel_id = :channel and source_event_id = :source_event_id and conversation_key = :conversation;

-- name: save_command_response
update public.command_answers
set answer = :answer
where channel_id = :channel and source_event_id = :source_event_id and conversation_key = :conversation;

-- name: is_account_disabled
select disabled_at is not null from public.accounts where id = :account;

-- name: count_open_messages
select count(*) from public.inbound_messages
where account_id = :account and conversation_key = :conversation and status in ('QUEUED', 'DELIVERED');

-- name: delete_chat_page_codes
delete from public.conversation_codes where conversation_key = :conversation;

-- name: insert_chat_page_code
insert into public.conversation_codes (code_hash, conversation_key, expires_at)
values (:code_hash, :conversation, pabal.now() + :life::interval);

-- name: purge_command_responses
delete from public.command_answers
where (channel_id, source_event_id) in (
    select channel_id, source_event_id from public.command_answers
    where created_at < pabal.now() - :keep::interval
    limit :batch
);

-- name: purge_chat_page_codes
delete from public.conversation_codes
where code_hash in (select code_hash from public.conversation_codes where expires_at <= pabal.now() limit :batch);
