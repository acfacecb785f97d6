-- name: claim
-- One statement for all accounts that wait in this process, each with its own holder and limit.
-- * Queued messages and expired leases are read apart: with `or` the index gives no order, and all of the account is read.
-- * Messages of a conversation leave in order of arrival. A message that follows one which another claim has locked is left
--   to that claim; and while a stream holds messages of a conversation, the rest of it belongs to that stream. (`limit 1`
--   makes this one index step per candidate, never a join.)
-- * A row that changed since our snapshot is locked in its new version, at a ctid that this statement does not see, so rows
--   are found again by id. `= any(array[...])` can only be an index lookup per row; `=` might become a join.
-- * An account gets messages up to the payload that reaches :max_bytes; the others stay queued. Up to 2 KB that are not
--   compressed, a payload's size in the table is close to that of its text.
-- * An account with contended messages is returned in a row without a message: two concurrent claims may leave the same
--   messages to each other.
with requests as materialized (
    select * from unnest(:accounts::uuid[], :holders::text[], :limits::int[], :holds::interval[])
        as a (account_id, holder, max_messages, hold)
),
queued as materialized (
    select a.account_id, a.holder, a.hold, m.*
    from requests a
    cross join lateral (
        select m.id, m.seq, m.conversation_key, null::uuid as previous_lease,
               case when pg_column_compression(m.kakao_payload) is null and pg_column_size(m.kakao_payload) < 2000
                    then pg_column_size(m.kakao_payload) else octet_length(m.kakao_payload::text) end as bytes
        from public.inbound_messages m
        where m.account_id = a.account_id and m.status = 'QUEUED' and m.expires_at > pabal.now()
          and (
              select h.id from public.inbound_messages h
              where h.conversation_key = m.conversation_key and h.status = 'DELIVERED' and h.account_id = m.account_id
                and h.leased_until > pabal.now() and h.held_by like 'stream:%' and h.held_by <> a.holder
              limit 1
          ) is null
        order by m.seq
        limit a.max_messages
        for no key update skip locked
    ) m
),
expired_leases as materialized (
    select a.account_id, a.holder, a.hold, m.*
    from requests a
    cross join lateral (
        select m.id, m.seq, m.conversation_key, m.lease as previous_lease,
               case when pg_column_compression(m.kakao_payload) is null and pg_column_size(m.kakao_payload) < 2000
                    then pg_column_size(m.kakao_payload) else octet_length(m.kakao_payload::text) end as bytes
        from public.inbound_messages m
        where m.account_id = a.account_id and m.status = 'DELIVERED' and m.expires_at > pabal.now()
          and m.leased_until <= pabal.now()
        order by m.seq
        limit a.max_messages
        for no key update skip locked
    ) m
),
skipped as materialized (
    select m.conversation_key, min(m.seq) as seq
    from (select w.account_id, max(w.seq) as last_seq, count(*) as message_count from queued w group by w.account_id) w
    cross join lateral (
        select m.id, m.conversation_key, m.seq
        from public.inbound_messages m
        where m.account_id = w.account_id and m.status = 'QUEUED' and m.seq < w.last_seq and m.expires_at > pabal.now()
        order by m.seq
        limit w.message_count + 1000
    ) m
    left join queued x on x.id = m.id
    where x.id is null
    group by m.conversation_key
),
picked as materialized (
    select m.id, m.previous_lease, m.holder, m.hold, nextval('public.inbound_messages_delivery_seq') as delivery_seq
    from (
        select m.*
        from requests a
        cross join lateral (
            select m.*
            from (
                select m.*, sum(m.bytes) over (order by m.seq) - m.bytes as bytes_before
                from (select * from queued union all select * from expired_leases) m
                left join skipped o on o.conversation_key = m.conversation_key and o.seq < m.seq
                where m.account_id = a.account_id and m.holder = a.holder and o.seq is null
            ) m
            where m.bytes_before < :max_bytes
            order by m.seq
            limit a.max_messages
        ) m
        order by m.seq
    ) m
),
claimed as (
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
contended as (
    select distinct w.account_id
    from queued w
    join skipped o on o.conversation_key = w.conversation_key and o.seq < w.seq
)
select t.*, null::uuid as contended_account_id from claimed t
union all
select t.*, l.account_id from contended l left join claimed t on false;

-- name: lock
-- Before settling with several statements: two settlers cannot deadlock.
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
-- Back into the queue at once: messages wait for their account only, so the delay is ignored.
update public.inbound_messages m
set status = 'QUEUED', lease = null, leased_until = null, held_by = null
from (
    select a.* from unnest(:ids::uuid[], :leases::uuid[], :accounts::uuid[], :delays::interval[], :reasons::text[])
        as a (id, lease, account_id, delay, reason)
    join public.inbound_messages m on m.id = a.id and m.lease = a.lease and m.account_id = a.account_id
    order by a.id
    for no key update of m
) a
where m.id = a.id
returning m.id;

-- name: extend
-- Never waits: a locked row is being settled, and another heartbeat comes before its lease ends. Returns the ids whose
-- lease is lost.
with extended as (
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
-- For all accounts: messages past their queue life that are queued or whose lease has ended. For a conversation whose
-- messages were never delivered, one text is kept as a late reply and shown with the next response. While the callback is
-- alive, the stall uses it for the same text. A reply that was stored meanwhile stays.
with overdue as materialized (
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
    from overdue l
    where m.id = l.id
    returning m.id
),
undelivered as (
    select distinct on (l.conversation_key) l.id, l.account_id, l.conversation_key
    from overdue l
    join public.conversation_mappings c
        on c.conversation_key = l.conversation_key and c.account_id = l.account_id and c.state = 'PAIRED'
    where l.delivery_count = 0
      and (l.callback_expires_at is null or l.callback_expires_at <= pabal.now())
      and not exists (
          select from public.relay_replies r
          where r.conversation_key = l.conversation_key and r.account_id = l.account_id
            and r.kept_until > pabal.now() and r.shown_at is null and r.response = :response::jsonb
      )
    order by l.conversation_key, l.seq desc
),
kept_texts as (
    insert into public.relay_replies as r (message_id, account_id, conversation_key, response, answered_at, kept_until)
    select u.id, u.account_id, u.conversation_key, :response::jsonb, pabal.now(), pabal.now() + :keep::interval
    from undelivered u
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
