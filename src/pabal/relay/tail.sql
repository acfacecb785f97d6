-- name: open
-- What has not ended, the newest first.
select m.id
from public.inbound_messages m
where m.ended_at is null
  and (:account::uuid is null or m.account_id = :account)
  and (:conversation::text is null or m.conversation_key = :conversation)
order by m.expires_at desc
limit :limit;

-- name: ended
select m.id
from public.inbound_messages m
where m.ended_at > :after::timestamptz
  and (:account::uuid is null or m.account_id = :account)
  and (:conversation::text is null or m.conversation_key = :conversation)
order by m.ended_at desc
limit :limit;

-- name: now
select pabal.now();
