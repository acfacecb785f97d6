-- name: lock_stream_owner
-- Streams of one token, or of one account, are opened one after the other, so that their number can be counted.
select pg_advisory_xact_lock(hashtextextended('relay stream ' || :whose, 0));

-- name: open_stream
insert into public.relay_streams (id, account_id, token_id, after_id, alive_until)
select :id, :account, :token, :last, pabal.now() + :life::interval
where (
    select count(*) from public.relay_streams
    where alive_until > pabal.now()
      and (account_id = :account or token_id = :token)
) < :most
returning id;

-- name: touch_session
update public.relay_sessions set last_seen_at = pabal.now() where id = :session;

-- name: resume_messages
-- An id that was never given out, from before a restore or from another hub, says nothing.
-- What the token's earlier streams were handed. Up to the last id the client has seen it is held for the new stream, and
-- not handed out again; what came after, or everything if the client says nothing, is free again where its stream is gone.
-- A stream that is open may be another client's with the same token. It is this client's, and only not known to be gone, if
-- it was sent the last id, or was opened after it: the message of that id tells, or one of the newest that were ended.
with known as materialized (
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
before as materialized (
    select b.held_by
    from known k
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
      and s.after_id is distinct from (select last from known)
),
kept as (
    update public.inbound_messages m
    set held_by = :holder, lease = :lease::uuid, leased_until = pabal.now() + :hold::interval
    from mine
    where m.id = mine.id and mine.delivery_seq <= (select last from known)
      and not exists (
          select from others o where o.holder = mine.held_by and o.holder is distinct from (select held_by from before)
      )
    returning m.id
),
freed as (
    update public.inbound_messages m
    set status = 'QUEUED', lease = null, leased_until = null, held_by = null
    from mine
    where m.id = mine.id and not mine.is_open
      and ((select last from known) is null or mine.delivery_seq > (select last from known))
)
select id from kept;

-- name: extend_stream_leases
-- For every stream of this process: what they hold stays held until its queue life ends, and they stay alive. What is no
-- longer theirs to hold is told back.
with alive as (
    update public.relay_streams s
    set alive_until = pabal.now() + :life::interval
    where s.id = any(:streams::uuid[])
),
longer as (
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

-- name: set_stream_account
update public.relay_streams set account_id = :account where id = :id;

-- name: close_streams
-- The client may come back for what it was handed: until the lease ends it is kept for its token. A client that came back
-- before we noticed that it had gone has its new stream already, and has told by its last id what it lacks: that is free.
-- One that comes back this moment, and does not see this closed nor is seen by it, is seen by the next look.
with gone as (
    delete from public.relay_streams where id = any(:streams::uuid[])
),
closing as materialized (
    select c.account_id, c.holder, exists (
        select from public.relay_streams s
        where s.token_id = c.token_id and s.id <> all(:streams::uuid[]) and s.alive_until > pabal.now()
          and s.opened_at > pabal.now() - interval '1 minute'
    ) as is_followed
    from unnest(:accounts::uuid[], :holders::text[], :tokens::uuid[]) as c (account_id, holder, token_id)
),
left_behind as (
    update public.inbound_messages m
    set status = case when a.is_followed then 'QUEUED' else 'DELIVERED' end,
        lease = case when not a.is_followed then m.lease end,
        leased_until = case when not a.is_followed then m.leased_until end,
        held_by = case when not a.is_followed then 'closed:' || substr(m.held_by, 8) end
    from closing a
    where m.account_id = a.account_id and m.status = 'DELIVERED'
      and (m.held_by = a.holder or a.is_followed and m.held_by = 'closed:' || substr(a.holder, 8))
    returning m.account_id, m.status
)
select distinct account_id, status = 'QUEUED' as is_free from left_behind;

-- name: find_ended_waits
-- Of the sessions that wait here: those that wait for nobody any more. One that is not there went with its account.
select w.id as session_id,
       case
           when s.id is null or s.revoked_at is not null then 'refused'
           when a.disabled_at is not null then 'disabled'
           else 'lapsed'
       end as reason
from unnest(:sessions::uuid[]) as w (id)
left join public.relay_sessions s on s.id = w.id
left join public.accounts a on a.id = s.account_id
where s.id is null or s.revoked_at is not null or a.disabled_at is not null
   or (s.account_id is null and s.expires_at <= pabal.now());

-- name: purge_dead_streams
-- For every account: streams whose process is gone.
delete from public.relay_streams
where id in (
    select id from public.relay_streams
    where alive_until < pabal.now() - interval '1 minute'
    limit :batch
    for update skip locked
);
