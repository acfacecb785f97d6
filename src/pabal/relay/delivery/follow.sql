-- name: list_open_ids
-- Newest first.
select m.id
from public.inbound_messages m
where m.ended_at is null
  and (:account::uuid is null or m.account_id = :account)
  and (:conversation::text is null or m.conversation_key = :conversation)
order by m.expires_at desc
limit :limit;

-- name: list_ended_ids
select m.id
from public.inbound_messages m
where m.ended_at > :after::timestamptz
  and (:account::uuid is null or m.account_id = :account)
  and (:conversation::text is null or m.conversation_key = :conversation)
order by m.ended_at desc
limit :limit;

-- name: database_now
select pabal.now();
