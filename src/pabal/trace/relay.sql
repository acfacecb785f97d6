-- name: find_message_matches
-- What begins with this: messages and replies. A few of each tell whether it is one.
(
    select m.id as matched_id, m.id as message_id, 'message' as kind
    from public.inbound_messages m
    where m.id between :low::uuid and :high::uuid and (:account::uuid is null or m.account_id = :account)
    order by m.id
    limit :limit
)
union all
(
    select r.id, r.message_id, 'reply'
    from public.relay_replies r
    where r.id between :low and :high and (:account::uuid is null or r.account_id = :account)
    order by r.id
    limit :limit
);

-- name: list_shown_late_replies
-- Late answers to earlier messages that were shown in front of the answer to this one.
select r.message_id, r.shown_at
from public.relay_replies r
where r.shown_with = :id and (:account::uuid is null or r.account_id = :account)
order by r.answered_at;

-- name: conversation_exists
select true
from public.conversation_mappings c
where c.conversation_key = :conversation and (:account::uuid is null or c.account_id = :account);

-- name: database_now
select pabal.now();
