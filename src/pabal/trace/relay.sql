-- name: find_message_matches
-- Messages and replies, by a range of ids. The range bounds the index scan; the suffix decides among the ids in it.
(
    select m.id, 'message' as kind, m.id as subject_id
    from public.inbound_messages m
    where m.id between :low::uuid and :high::uuid and right(m.id::text, length(:suffix::text)) = :suffix
        and (:account::uuid is null or m.account_id = :account)
    order by m.id
    limit :limit
)
union all
(
    select r.id, 'reply', coalesce(r.message_id, r.continues)
    from public.relay_replies r
    where r.id between :low and :high and right(r.id::text, length(:suffix::text)) = :suffix
        and (:account::uuid is null or r.account_id = :account)
    order by r.id
    limit :limit
);

-- name: list_shown_late_replies
-- Late replies to earlier messages that were shown before the reply to this one, and further blocks shown after it.
select coalesce(r.message_id, r.continues) as message_id, r.shown_at
from public.relay_replies r
where r.shown_with = :id and (:account::uuid is null or r.account_id = :account)
order by r.answered_at;

-- name: conversation_exists
select true
from public.conversation_mappings c
where c.conversation_key = :conversation and (:account::uuid is null or c.account_id = :account);
