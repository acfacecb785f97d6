-- name: claim
-- One statement for every account that waits in this process, each with its own number of free places. Arrival order
-- within an account; a held message is due again when its lease ends; one past its queue life is not handed out. What
-- waits and what was let go are looked for apart: with `or` the index gives no order and the whole account is read.
with asked as materialized (
    select * from unnest(:accounts::uuid[], :limits::int[]) as a (account_id, places)
),
waiting as materialized (
    select a.account_id, m.seq, m.place
    from asked a
    cross join lateral (
        select m.seq, m.ctid as place
        from public.inbound_messages m
        where m.account_id = a.account_id and m.status = 'QUEUED' and m.expires_at > pabal.now()
        order by m.seq
        limit a.places
        for no key update skip locked
    ) m
),
lapsed as materialized (
    select a.account_id, m.seq, m.place
    from asked a
    cross join lateral (
        select m.seq, m.ctid as place
        from public.inbound_messages m
        where m.account_id = a.account_id and m.status = 'DELIVERED' and m.expires_at > pabal.now()
          and m.leased_until <= pabal.now()
        order by m.seq
        limit a.places
        for no key update skip locked
    ) m
),
picked as materialized (
    select m.place
    from asked a
    cross join lateral (
        select m.place
        from (select * from waiting union all select * from lapsed) m
        where m.account_id = a.account_id
        order by m.seq
        limit a.places
    ) m
)
update public.inbound_messages m
set status = 'DELIVERED',
    lease = :lease::uuid,
    leased_until = pabal.now() + :hold::interval,
    held_by = :holder,
    delivered_at = pabal.now(),
    delivery_count = m.delivery_count + 1
from picked p
where m.ctid = p.place
returning m.id, m.lease, m.account_id, m.conversation_key, m.kakao_payload, m.normalized, m.callback_expires_at, m.seq,
          m.created_at, m.delivery_count as attempt, 0 as allowed;

-- name: lock
-- Before a settle of several statements, so that two of them cannot cross.
select a.id
from unnest(:ids::uuid[], :leases::uuid[], :accounts::uuid[]) as a (id, lease, account_id)
join public.inbound_messages m on m.id = a.id and m.lease = a.lease and m.account_id = a.account_id
order by a.id
for no key update of m;

-- name: settle_done
update public.inbound_messages m
set status = 'ACKED', acked_at = pabal.now(), ended_at = pabal.now(), reason = 'acked',
    lease = null, leased_until = null, held_by = null
from (
    select a.* from unnest(:ids::uuid[], :leases::uuid[], :accounts::uuid[])
        as a (id, lease, account_id)
    join public.inbound_messages m on m.id = a.id and m.lease = a.lease and m.account_id = a.account_id
    order by a.id
    for no key update of m
) a
where m.id = a.id
returning m.id;

-- name: settle_snooze
-- Back at once, whatever was asked: a message waits for its account and for nothing else.
update public.inbound_messages m
set status = 'QUEUED', lease = null, leased_until = null, held_by = null
from (
    select a.* from unnest(:ids::uuid[], :leases::uuid[], :accounts::uuid[], :afters::interval[], :whys::text[])
        as a (id, lease, account_id, after, why)
    join public.inbound_messages m on m.id = a.id and m.lease = a.lease and m.account_id = a.account_id
    order by a.id
    for no key update of m
) a
where m.id = a.id
returning m.id;

-- name: extend
-- Waits for nobody: a row that is locked is being settled, and there is another heartbeat before its lease ends. What is
-- asked for and no longer held is told back.
with longer as (
    update public.inbound_messages m
    set leased_until = pabal.now() + :hold::interval
    from (
        select a.id from unnest(:ids::uuid[], :leases::uuid[], :accounts::uuid[]) as a (id, lease, account_id)
        join public.inbound_messages m on m.id = a.id and m.lease = a.lease and m.account_id = a.account_id
        for no key update of m skip locked
    ) mine
    where m.id = mine.id
)
select a.id
from unnest(:ids::uuid[], :leases::uuid[], :accounts::uuid[]) as a (id, lease, account_id)
left join public.inbound_messages m on m.id = a.id and m.lease = a.lease and m.account_id = a.account_id
where m.id is null;

-- name: expire
-- The end of queue life, for every account: what waits, and what nobody holds any more.
update public.inbound_messages m
set status = 'EXPIRED', ended_at = pabal.now(), reason = 'queue_life', lease = null, leased_until = null, held_by = null
from (
    select id from public.inbound_messages
    where ended_at is null and expires_at <= pabal.now()
      and (status = 'QUEUED' or leased_until <= pabal.now())
    order by expires_at
    limit :batch
    for no key update skip locked
) late
where m.id = late.id;

-- name: purge
delete from public.inbound_messages m
using (
    select id from public.inbound_messages
    where ended_at < pabal.now() - make_interval(days => :days)
    order by ended_at
    limit :batch
    for update skip locked
) old
where m.id = old.id;
