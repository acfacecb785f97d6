-- name: lock_stream_owner
-- Serialises the opening of streams of one account or session, so that they can be counted.
select pg_advisory_xact_lock(hashtextextended('relay stream ' || :owner, 0));

-- name: open_stream
insert into public.relay_streams (id, account_id, token_id, after_id, alive_until)
select :id, :account, :token, :last, pabal.now() + :life::interval
where (
    select count(*) from public.relay_streams
    where alive_until > pabal.now()
      and (account_id = :account or token_id = :token)
) < :max_streams
returning id;

-- name: touch_session
update public.relay_sessions set last_seen_at = pabal.now() where id = :session;

-- name: resume_messages
-- What the token's earlier streams delivered. Messages up to the client's last id are held for the new stream and not
-- delivered again. Later ones, or all without a last id, are queued again if their stream is closed. An open stream may be
-- another client with the same token; it is this client's, not yet known to be gone, if it delivered the last id or was
-- opened after it. The message of that id shows it, or one of the newest that ended. An id that was never given out (from
-- before a restore, or of another hub) counts as none.
with valid as materialized (
    select case when :last::bigint <= last_value then :last::bigint end as last from public.inbound_messages_delivery_seq
),
mine as materialized (
    select id, delivery_seq, held_by, held_by like 'stream:%' as is_open
    from public.inbound_messages
    where account_id = :account and status = 'DELIVERED'
      and (held_by like 'stream:' || :token::uuid || ':%' or held_by like 'closed:' || :token::uuid || ':%')
    order by id
    for no key update
),
previous as materialized (
    select b.held_by
    from valid k
    cross join lateral (
        select m.held_by from mine m where m.delivery_seq = k.last
        union all
        select e.held_by
        from (
            select m.delivery_seq, m.held_by
            from public.inbound_messages m
            where m.account_id = :account and m.status = 'ACKED'
            order by m.seq desc
            limit 100
        ) e
        where e.delivery_seq = k.last
    ) b
    where k.last is not null
    limit 1
),
others as materialized (
    select 'stream:' || s.token_id || ':' || s.id as holder
    from public.relay_streams s
    where s.token_id = :token and s.id <> :stream and s.alive_until > pabal.now()
      and s.after_id is distinct from (select last from valid)
),
kept as (
    update public.inbound_messages m
    set held_by = :holder, lease = :lease::uuid, leased_until = pabal.now() + :hold::interval
    from mine
    where m.id = mine.id and mine.delivery_seq <= (select last from valid)
      and not exists (
          select from others o where o.holder = mine.held_by and o.holder is distinct from (select held_by from previous)
      )
    returning m.id
),
freed as (
    update public.inbound_messages m
    set status = 'QUEUED', lease = null, leased_until = null, held_by = null
    from mine
    where m.id = mine.id and not mine.is_open
      and ((select last from valid) is null or mine.delivery_seq > (select last from valid))
)
select id from kept;

-- name: extend_stream_leases
-- For all streams of this process: keeps them alive and extends the leases of their messages, within the messages' queue
-- life. Returns the ids whose lease is lost.
with alive as (
    update public.relay_streams s
    set alive_until = pabal.now() + :life::interval
    where s.id = any(:streams::uuid[])
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
select a.id
from unnest(:ids::uuid[], :leases::uuid[], :accounts::uuid[]) as a (id, lease, account_id)
left join public.inbound_messages m
    on m.id = a.id and m.lease = a.lease and m.account_id = a.account_id and m.expires_at > pabal.now()
where m.id is null;

-- name: close_streams
-- Messages that a closed stream delivered are kept for its token until their lease ends, because the client may reconnect.
-- A client that reconnected before we noticed has a newer stream, and has named what it lacks by its last id: the messages
-- are queued. A reconnect that commits concurrently is visible to the second run of this statement.
with deleted as (
    delete from public.relay_streams where id = any(:streams::uuid[])
),
closing as materialized (
    select c.account_id, c.holder, exists (
        select from public.relay_streams s
        where s.token_id = c.token_id and s.id <> all(:streams::uuid[]) and s.alive_until > pabal.now()
          and s.opened_at > pabal.now() - interval '1 minute'
    ) as has_successor
    from unnest(:accounts::uuid[], :holders::text[], :tokens::uuid[]) as c (account_id, holder, token_id)
),
released as (
    update public.inbound_messages m
    set status = case when a.has_successor then 'QUEUED' else 'DELIVERED' end,
        lease = case when not a.has_successor then m.lease end,
        leased_until = case when not a.has_successor then m.leased_until end,
        held_by = case when not a.has_successor then 'closed:' || substr(m.held_by, 8) end
    from closing a
    where m.account_id = a.account_id and m.status = 'DELIVERED'
      and (m.held_by = a.holder or a.has_successor and m.held_by = 'closed:' || substr(a.holder, 8))
    returning m.account_id, m.status
)
select distinct account_id, status = 'QUEUED' as is_free from released;

-- name: purge_dead_streams
-- For all accounts: streams whose process is gone.
delete from public.relay_streams
where id in (
    select id from public.relay_streams
    where alive_until < pabal.now() - interval '1 minute'
    limit :batch
    for update skip locked
);
