-- name: list_newest_ids
-- Of all accounts. Ids ascend with time, and the primary key is the only index that holds every message.
select m.id
from public.inbound_messages m
where m.id < :before::uuid and (:account::uuid is null or m.account_id = :account)
order by m.id desc
limit :limit;

-- name: list_ids_by_status
-- Of one account, or in one status. Reads the newest of each account and status from their index; any other plan scans the
-- whole table for a rare status.
select m.id
from public.accounts o
cross join unnest(:statuses::text[]) as s (status)
cross join lateral (
    select m.id, m.seq
    from public.inbound_messages m
    where m.account_id = o.id and (:account::uuid is null or m.account_id = :account) and m.status = s.status
      and m.seq < :before::bigint
    order by m.seq desc
    limit :limit
) m
where :account::uuid is null or o.id = :account
order by m.seq desc
limit :limit;

-- name: list_ids_in_conversation
-- An account sees only its own messages, not those that the same user sent to another account.
select m.id
from public.inbound_messages m
where m.conversation_key = :conversation and m.seq < :before::bigint
  and (:account::uuid is null or m.account_id = :account) and m.status = any(:statuses::text[])
order by m.seq desc
limit :limit;

-- name: find_messages
-- Without the callback URL: it is a capability to post into the chat.
select m.id, m.seq, m.account_id, m.conversation_key, m.normalized ->> 'text' as text, m.status, m.reason, m.created_at,
       m.delivered_at, m.delivery_count, m.held_by, m.leased_until, m.expires_at, m.callback_expires_at, m.acked_at, m.ended_at,
       case when r.shown_at is not null then 'shown' else r.state end as reply,
       m.normalized = '{"envelope": "kakao_payload"}' as is_encrypted
from unnest(:ids::uuid[]) with ordinality as w (id, position)
join public.inbound_messages m on m.id = w.id and (:account::uuid is null or m.account_id = :account)
left join public.relay_replies r on r.message_id = m.id
order by w.position;

-- name: find_encrypted_payloads
select m.id, m.account_id, m.kakao_payload
from public.inbound_messages m
where m.id = any(:ids::uuid[]) and (:account::uuid is null or m.account_id = :account);

-- name: find_payload
select m.kakao_payload #- '{userRequest,callbackUrl}'
from public.inbound_messages m
where m.id = :id and (:account::uuid is null or m.account_id = :account);

-- name: find_reply
select r.id, r.state, r.spent_by, r.outcome, r.response, r.created_at, r.spent_at, r.settled_at, r.answered_at,
       r.status_code, r.kakao, r.error, r.kept_until, r.shown_at, r.shown_with, r.in_webhook
from public.relay_replies r
where r.message_id = :id and (:account::uuid is null or r.account_id = :account);

-- name: find_reply_summaries
select r.id, r.message_id, r.state, r.spent_by, r.response, r.answered_at, r.shown_at, r.error
from public.relay_replies r
where r.message_id = any(:messages::uuid[]) and (:account::uuid is null or r.account_id = :account);

-- name: list_failed_callbacks
-- For operators. Failed callbacks have a partial index on settled_at.
select r.id, r.message_id, r.account_id, r.conversation_key, r.spent_by, r.outcome, r.settled_at, r.status_code, r.error
from public.relay_replies r
where r.outcome in ('refused', 'unknown') and (:before::timestamptz is null or (r.settled_at, r.id) < (:before, :before_id::uuid))
order by r.settled_at desc, r.id desc
limit :limit;
