-- name: extend_stream_leases
-- For all streams of this process: keeps them alive and extends the leases of their messages, within the messages' queue
-- life. Returns the messages whose lease is lost and the streams whose row is gone: no new stream can take over from those.
with alive as (
    update public.relay_streams s
    set alive_until = pabal.now() + :life::interval
    where s.id = any(:streams::uuid[])
    returning s.id
),
extended as (
    update public.inbound_messages m
    set leased_until = pabal.now() + :hold::interval
    from (
        select a.id from unnest(:ids::uuid[], :leases::uuid[], :accounts::uuid[]) as a (id, lease, account_id)
        join public.inbound_messages m on m.id = a.id and m.lease = a.lease and m.account_id = a.account_id
        where m.expires_at > pabal.now()
        for no key update of m skip locked
    ) mine
    where m.id = mine.id
)
select a.id as message_id, null::uuid as stream_id
from unnest(:ids::uuid[], :leases::uuid[], :accounts::uuid[]) as a (id, lease, account_id)
left join public.inbound_messages m
    on m.id = a.id and m.lease = a.lease and m.account_id = a.account_id and m.expires_at > pabal.now()
where m.id is null
union all
select null, o.id
from unnest(:streams::uuid[]) as o (id)
left join alive s on s.id = o.id
where s.id is null;

-- name: close_streams
-- Messages that a closed stream delivered are kept for its token until their lease ends, because the client may reconnect.
-- If the token has an active stream already, that one named what its client lacks, and the messages are queued. A reconnect
-- that commits concurrently is visible to the second run of this statement. Tokens that are left with parked streams only
-- are returned in rows without an account.
-- The streams are locked before their messages, as `open_stream` does: `closing` waits for `deleted`.
with deleted as (
    delete from public.relay_streams where id = any(:streams::uuid[])
    returning id
),
closing as materialized (
    select a.account_id, a.token_id || ':' || a.stream_id as holder, exists (
        select from public.relay_streams s
        where s.token_id = a.token_id and s.id <> all(:streams::uuid[]) and s.parked_at is null and s.alive_until > pabal.now()
    ) as has_successor
    from unnest(:accounts::uuid[], :streams::uuid[], :tokens::uuid[]) as a (account_id, stream_id, token_id)
    where (select count(*) from deleted) >= 0
),
held as materialized (
    select m.id, a.has_successor
    from closing a
    join public.inbound_messages m on m.account_id = a.account_id and m.status = 'DELIVERED'
        and (
            m.held_by = 'stream:' || a.holder or m.held_by = 'parked:' || a.holder
            or a.has_successor and m.held_by = 'closed:' || a.holder
        )
    order by m.id
    for no key update of m
),
released as (
    update public.inbound_messages m
    set status = case when h.has_successor then 'QUEUED' else 'DELIVERED' end,
        lease = case when not h.has_successor then m.lease end,
        leased_until = case when not h.has_successor then m.leased_until end,
        held_by = case when not h.has_successor then 'closed:' || substr(m.held_by, 8) end
    from held h
    where m.id = h.id
    returning m.account_id, m.status
)
select distinct account_id, status = 'QUEUED' as is_free, null::uuid as parked_token_id from released
union all
select distinct null::uuid, true, s.token_id
from public.relay_streams s
where s.token_id = any(:tokens::uuid[]) and s.id <> all(:streams::uuid[]) and s.alive_until > pabal.now()
group by s.token_id
having bool_and(s.parked_at is not null);

-- name: purge_dead_streams
-- For all accounts: streams whose process is gone.
delete from public.relay_streams
where id in (
    select id from public.relay_streams
    where alive_until < pabal.now() - interval '1 minute'
    limit :batch
    for update skip locked
);
