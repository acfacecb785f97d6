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

-- name: queue_unreceived
-- Messages that a poller holds and that were delivered after the one it names. A message of another account names none.
update public.inbound_messages m
set status = 'QUEUED', lease = null, leased_until = null, held_by = null
from (
    select m.id
    from public.inbound_messages r
    join public.inbound_messages m on m.account_id = r.account_id and m.delivery_seq > r.delivery_seq
    where r.id = :received and r.account_id = :account and m.status = 'DELIVERED' and m.held_by = :holder
      and m.leased_until > pabal.now()
    order by m.id
    for no key update of m
) lost
where m.id = lost.id;

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
