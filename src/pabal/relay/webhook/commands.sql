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

-- name: has_outstanding_answer
-- Whether the conversation has an answer to show, or one of its newest messages still gets one. Not while the answer may come
-- through a callback. A repeated webhook is what it was at
-- first: a command, or a message.
select not exists (
           select from public.inbound_messages m where m.channel_id = :channel::text and m.source_event_id = :source_event_id::text
       ) and (exists (
           select from public.command_answers w
           where w.channel_id = :channel::text and w.source_event_id = :source_event_id::text
             and w.conversation_key = :conversation
       ) or exists (
           select from public.conversation_mappings a
           where a.conversation_key = :conversation and a.state = 'PAIRED' and (
               exists (
                   select from public.relay_replies l
                   where l.conversation_key = a.conversation_key and l.account_id = a.account_id and l.kept_until > pabal.now()
                     and l.shown_at is null and jsonb_array_length(l.response -> 'template' -> 'outputs') > 0
               ) or exists (
                   select
                   from (
                       select m.id, m.account_id, m.status, m.created_at, m.callback_expires_at
                       from public.inbound_messages m
                       where m.conversation_key = a.conversation_key
                       order by m.seq desc
                       limit :max_messages
                   ) m
                   left join public.relay_replies r on r.message_id = m.id
                   where m.account_id = a.account_id and m.status in ('QUEUED', 'DELIVERED', 'ACKED')
                     and m.created_at > pabal.now() - :span::interval
                     and case
                         when r.id is null then m.callback_expires_at is null or m.callback_expires_at <= pabal.now()
                         else r.state = 'awaited'
                     end
               )
           )
       ));

-- name: find_bot_status
-- A day is one of Korea, as for all times in the chat. Counts only the newest messages of the conversation, which the index has in order.
select a.openclaw_user_id as name, a.disabled_at is not null as is_disabled,
       exists (
           select from public.relay_streams s
           where s.account_id = a.id and s.alive_until > pabal.now() and s.parked_at is null
       ) or pabal.limit_used_within('relay requests:' || a.id, :poll_span::interval) as is_online,
       m.*
from public.accounts a
cross join lateral (
    select count(*) filter (where m.created_at >= date_trunc('day', pabal.now(), 'Asia/Seoul')) as messages,
           count(r.id) filter (where m.created_at >= date_trunc('day', pabal.now(), 'Asia/Seoul') and (r.state = 'sent' or r.shown_at is not null)) as replies,
           count(*) filter (where m.status in ('QUEUED', 'DELIVERED')) as waiting
    from (
        select m.id, m.created_at, m.status
        from public.inbound_messages m
        where m.conversation_key = :conversation and m.account_id = :account
        order by m.seq desc
        limit :max_counted
    ) m
    left join public.relay_replies r on r.message_id = m.id and r.account_id = :account
) m
where a.id = :account;

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
