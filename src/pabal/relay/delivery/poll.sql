-- name: ack_messages
-- The holder is the account, so it may acknowledge a message even after the lease has ended.
update public.inbound_messages m
set status = 'ACKED', acked_at = pabal.now(), ended_at = pabal.now(), reason = 'acked',
    lease = null, leased_until = null
from (
    select id from public.inbound_messages
    where account_id = :account and id = any(:ids::uuid[]) and status in ('QUEUED', 'DELIVERED')
    order by id
    for no key update
) mine
where m.id = mine.id
returning m.id;

-- name: nack_messages
update public.inbound_messages m
set status = 'QUEUED', lease = null, leased_until = null, held_by = null
from (
    select id from public.inbound_messages
    where account_id = :account and id = any(:ids::uuid[]) and status = 'DELIVERED'
    order by id
    for no key update
) mine
where m.id = mine.id
returning m.id;

-- name: extend_message_leases
update public.inbound_messages m
set leased_until = pabal.now() + :hold::interval
from (
    select id from public.inbound_messages
    where account_id = :account and id = any(:ids::uuid[]) and status = 'DELIVERED' and leased_until > pabal.now()
    order by id
    for no key update
) mine
where m.id = mine.id
returning m.id;
