-- name: claim
-- One statement for every account that waits in this process, each under its own holder and with its own number of free
-- places. What waits and what was let go are looked for apart: with `or` the index gives no order and the whole account is
-- read. Within a conversation messages leave in the order they came, so what follows one that somebody else is just taking
-- is left to them; and while a stream holds some of a conversation, the rest is that stream's. (Asked with `limit`, so
-- that it is one step in an index for each candidate, and never a join with all that is held or waits.) A row that somebody
-- changed since this statement began is locked as it is now, at another place, which this statement does not see: rows are
-- found again by id. As an array of one, because that can only be looked up, row by row; `=` might be joined with the table.
-- An account that left something is told so, in a row without a message: two that look at once may leave it to each other.
with asked as materialized (
    select * from unnest(:accounts::uuid[], :holders::text[], :limits::int[], :holds::interval[])
        as a (account_id, holder, places, hold)
),
waiting as materialized (
    select a.account_id, a.holder, a.hold, m.*
    from asked a
    cross join lateral (
        select m.id, m.seq, m.conversation_key, null::uuid as previous_lease
        from public.inbound_messages m
        where m.account_id = a.account_id and m.status = 'QUEUED' and m.expires_at > pabal.now()
          and (
              select h.id from public.inbound_messages h
              where h.conversation_key = m.conversation_key and h.status = 'DELIVERED' and h.account_id = m.account_id
                and h.leased_until > pabal.now() and h.held_by like 'stream:%' and h.held_by <> a.holder
              limit 1
          ) is null
        order by m.seq
        limit a.places
        for no key update skip locked
    ) m
),
lapsed as materialized (
    select a.account_id, a.holder, a.hold, m.*
    from asked a
    cross join lateral (
        select m.id, m.seq, m.conversation_key, m.lease as previous_lease
        from public.inbound_messages m
        where m.account_id = a.account_id and m.status = 'DELIVERED' and m.expires_at > pabal.now()
          and m.leased_until <= pabal.now()
        order by m.seq
        limit a.places
        for no key update skip locked
    ) m
),
passed_over as materialized (
    select m.conversation_key, min(m.seq) as seq
    from (select w.account_id, max(w.seq) as last, count(*) as found from waiting w group by w.account_id) w
    cross join lateral (
        select m.id, m.conversation_key, m.seq
        from public.inbound_messages m
        where m.account_id = w.account_id and m.status = 'QUEUED' and m.seq < w.last and m.expires_at > pabal.now()
        order by m.seq
        limit w.found + 1000
    ) m
    left join waiting x on x.id = m.id
    where x.id is null
    group by m.conversation_key
),
picked as materialized (
    select m.id, m.previous_lease, m.holder, m.hold, nextval('public.inbound_messages_delivery_seq') as delivery_seq
    from (
        select m.*
        from asked a
        cross join lateral (
            select m.*
            from (select * from waiting union all select * from lapsed) m
            left join passed_over o on o.conversation_key = m.conversation_key and o.seq < m.seq
            where m.account_id = a.account_id and m.holder = a.holder and o.seq is null
            order by m.seq
            limit a.places
        ) m
        order by m.seq
    ) m
),
taken as (
    update public.inbound_messages m
    set status = 'DELIVERED',
        lease = :lease::uuid,
        leased_until = pabal.now() + p.hold,
        held_by = p.holder,
        delivery_seq = p.delivery_seq,
        delivered_at = pabal.now(),
        delivery_count = m.delivery_count + 1
    from picked p
    where m.id = any(array[p.id])
    returning m.id, m.lease, m.account_id, m.held_by, p.previous_lease, m.delivery_seq, m.conversation_key, m.kakao_payload,
              m.normalized, m.callback_expires_at, m.seq, m.created_at, m.delivery_count as attempt, 0 as max_attempts
),
left_over as (
    select distinct w.account_id
    from waiting w
    join passed_over o on o.conversation_key = w.conversation_key and o.seq < w.seq
)
select t.*, null::uuid as contended_account_id from taken t
union all
select t.*, l.account_id from left_over l left join taken t on false;

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
    lease = null, leased_until = null
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
    select a.* from unnest(:ids::uuid[], :leases::uuid[], :accounts::uuid[], :delays::interval[], :reasons::text[])
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
-- The end of queue life, for every account: what waits, and what nobody holds any more. Whoever wrote what nobody ever
-- fetched is told so in front of the next answer, once however much it was; where the callback is still alive, that is
-- used to say it. The row is the claim on the callback, so where an answer came meanwhile it stays as it is.
with late as materialized (
    select id, seq, account_id, conversation_key, delivery_count, callback_expires_at
    from public.inbound_messages
    where ended_at is null and expires_at <= pabal.now()
      and (status = 'QUEUED' or leased_until <= pabal.now())
    order by expires_at
    limit :batch
    for no key update skip locked
),
ended as (
    update public.inbound_messages m
    set status = 'EXPIRED', ended_at = pabal.now(), reason = 'queue_life', lease = null, leased_until = null
    from late l
    where m.id = l.id
    returning m.id
),
unfetched as (
    select distinct on (l.conversation_key) l.id, l.account_id, l.conversation_key
    from late l
    join public.conversation_mappings c
        on c.conversation_key = l.conversation_key and c.account_id = l.account_id and c.state = 'PAIRED'
    where l.delivery_count = 0
      and (l.callback_expires_at is null or l.callback_expires_at <= pabal.now())
      and not exists (
          select from public.relay_replies r
          where r.conversation_key = l.conversation_key and r.account_id = l.account_id
            and r.kept_until > pabal.now() and r.shown_at is null and r.response = :told::jsonb
      )
    order by l.conversation_key, l.seq desc
),
told as (
    insert into public.relay_replies as r (message_id, account_id, conversation_key, response, answered_at, kept_until)
    select u.id, u.account_id, u.conversation_key, :told::jsonb, pabal.now(), pabal.now() + :keep::interval
    from unfetched u
    order by u.id
    on conflict (message_id) do update
    set response = excluded.response, answered_at = excluded.answered_at, kept_until = excluded.kept_until
    where r.response is null
)
select count(*) from ended;

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
