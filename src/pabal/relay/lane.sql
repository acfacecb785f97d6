-- name: claim
-- One statement for every account that waits in this process, each with its own number of free places. Arrival order
-- within an account; a held message is due again when its lease ends; one past its queue life is not handed out.
with picked as materialized (
    select m.id, m.place
    from unnest(:accounts::uuid[], :limits::int[]) as a (account_id, places)
    cross join lateral (
        select m.id, m.ctid as place
        from public.inbound_messages m
        where m.account_id = a.account_id
          and (m.status = 'QUEUED' or m.status = 'DELIVERED' and m.leased_until <= pabal.now())
          and m.expires_at > pabal.now()
        order by m.seq
        limit a.places
        for no key update skip locked
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

-- name: settle_done
update public.inbound_messages m
set status = 'ACKED', acked_at = pabal.now(), ended_at = pabal.now(), reason = 'acked',
    lease = null, leased_until = null, held_by = null
from unnest(:ids::uuid[], :leases::uuid[], :accounts::uuid[]) as a (id, lease, account_id)
where m.id = a.id and m.lease = a.lease and m.account_id = a.account_id
returning m.id;

-- name: settle_snooze
-- Back at once, whatever was asked: a message waits for its account and for nothing else.
update public.inbound_messages m
set status = 'QUEUED', lease = null, leased_until = null, held_by = null
from unnest(:ids::uuid[], :leases::uuid[], :accounts::uuid[], :afters::interval[], :whys::text[])
    as a (id, lease, account_id, after, why)
where m.id = a.id and m.lease = a.lease and m.account_id = a.account_id
returning m.id;

-- name: extend
with longer as (
    update public.inbound_messages m
    set leased_until = pabal.now() + :hold::interval
    from unnest(:ids::uuid[], :leases::uuid[], :accounts::uuid[]) as a (id, lease, account_id)
    where m.id = a.id and m.lease = a.lease and m.account_id = a.account_id
    returning m.id
)
select a.id from unnest(:ids::uuid[]) as a (id) where a.id not in (select id from longer);

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
