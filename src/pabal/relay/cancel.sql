-- name: cancel_messages
-- In the order of ids, as settles lock them.
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
