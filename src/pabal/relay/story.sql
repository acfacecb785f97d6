-- name: named
-- What begins with this: messages and replies. A few of each tell whether it is one.
(
    select m.id as named, m.id as message, 'message' as kind
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

-- name: carried
-- Late answers to earlier messages that were shown in front of the answer to this one.
select r.message_id, r.shown_at
from public.relay_replies r
where r.shown_with = :id and (:account::uuid is null or r.account_id = :account)
order by r.answered_at;

-- name: there
select true
from public.conversation_mappings c
where c.conversation_key = :conversation and (:account::uuid is null or c.account_id = :account);

-- name: now
select pabal.now();
