-- name: authenticate_stream
-- The owner of a token, and the control events that its new stream must not get because this state includes them: one
-- snapshot shows both. The locks serialise the opening of streams of an account, so that they can be counted, and the changes
-- to a token's active stream. The account's comes first.
with token as materialized (
    select s.id as token_id, s.id as session_id, s.account_id, coalesce(a.rate_limit_per_minute, 600) as rate_limit,
           s.paired_at is not null and s.disconnected_at is null as paired,
           s.revoked_at is not null or (s.account_id is null and s.expires_at <= pabal.now()) as is_invalid,
           a.disabled_at is not null as is_disabled
    from public.relay_sessions s
    left join public.accounts a on a.id = s.account_id
    where s.token_hash = :token_hash
    union all
    select a.id, null, a.id, coalesce(a.rate_limit_per_minute, 600), true, false, a.disabled_at is not null
    from public.accounts a
    where a.relay_token_hash = :token_hash
)
select t.*,
       array(
           select e.id from public.relay_control_events e
           where e.created_at > pabal.now() - :window::interval
             and (e.account_id = t.account_id or e.session_id = t.session_id)
       ) as seen_ids,
       case
           when t.account_id is not null
           then pabal.lock_names('relay stream of account', array[t.account_id::text])
       end as account_lock,
       pabal.lock_names('relay stream of token', array[t.token_id::text]) as token_lock
from token t;

-- name: lock_stream_tokens
select pabal.lock_names('relay stream of token', :tokens::uuid[]::text[]);

-- name: open_stream
-- The new stream is the token's active one; the others are parked. Of more than :max_parked of them, the oldest are deleted,
-- first those whose process is gone. An account with :max_streams active streams of other tokens opens no further one.
-- Says whether messages of the token are held, by its earlier streams.
with opened as (
    insert into public.relay_streams (id, account_id, token_id, after_id, alive_until)
    select :id, :account, :token, :last, pabal.now() + :life::interval
    where (
        select count(*) from public.relay_streams s
        where s.account_id = :account and s.token_id <> :token and s.parked_at is null and s.alive_until > pabal.now()
    ) < :max_streams
    returning id
),
earlier as materialized (
    select s.id, s.parked_at,
           row_number() over (order by s.alive_until > pabal.now() desc, s.opened_at desc, s.id desc) > :max_parked as is_excess
    from public.relay_streams s
    where s.token_id = :token and exists (select from opened)
),
deleted as (
    delete from public.relay_streams s using earlier e where s.id = e.id and e.is_excess
    returning s.id
),
parked as (
    update public.relay_streams s set parked_at = pabal.now()
    from earlier e
    where s.id = e.id and not e.is_excess and e.parked_at is null
    returning s.id
),
touched as (
    update public.relay_sessions set last_seen_at = pabal.now() where id = :session and exists (select from opened)
)
select id, 'opened' as change from opened
union all
select id, 'parked' from parked
union all
select id, 'reset' from deleted
union all
select id, 'held' from opened
where exists (
    select from public.inbound_messages m
    where m.account_id = :account and m.status = 'DELIVERED' and substr(m.held_by, 7, 38) = ':' || :token::uuid || ':'
);

-- name: resume_messages
-- What the token's earlier streams delivered. Without a last id, all of it is delivered again, on the new stream. With one,
-- messages up to it are held for the new stream and not delivered again, and later ones are.
-- * An earlier stream that is still open may belong to another client with the same token. It is this client's if it delivered
--   the last id or started with it; a stream that started without one started with 0, the id of its first event. The message
--   of the last id shows which stream delivered it, or one of the newest that ended. Messages of another client's stream are
--   left to their lease, which no heartbeat extends, and no longer keep their conversation on that stream.
-- * A last id that was never given out (from before a restore, or of another hub) counts as none.
-- * Messages past their queue life, and more than :max_messages of them, are queued.
with valid as materialized (
    select case when :last::bigint <= last_value then :last::bigint end as last from public.inbound_messages_delivery_seq
),
mine as materialized (
    select m.id, m.seq, m.delivery_seq, substr(m.held_by, 8) as holder, m.expires_at > pabal.now() as is_alive
    from public.inbound_messages m
    where m.account_id = :account and m.status = 'DELIVERED'
      and (
          m.held_by like 'stream:' || :token::uuid || ':%'
          or m.held_by like 'parked:' || :token::uuid || ':%'
          or m.held_by like 'closed:' || :token::uuid || ':%'
      )
    order by m.id
    for no key update
),
previous as materialized (
    select b.holder
    from valid v
    cross join lateral (
        select m.holder from mine m where m.delivery_seq = v.last
        union all
        select substr(e.held_by, 8)
        from unnest(array['ACKED', 'EXPIRED', 'CANCELLED']) as status (name)
        cross join lateral (
            select m.delivery_seq, m.held_by
            from public.inbound_messages m
            where m.account_id = :account and m.status = status.name
            order by m.seq desc
            limit 100
        ) e
        where e.delivery_seq = v.last
    ) b
    where v.last is not null
    limit 1
),
unproven as materialized (
    select s.token_id || ':' || s.id as holder
    from public.relay_streams s
    where s.token_id = :token and s.id <> :stream and s.alive_until > pabal.now()
      and coalesce(s.after_id, 0) <> (select last from valid)
      and s.token_id || ':' || s.id is distinct from (select holder from previous)
),
sorted as materialized (
    select m.id, m.seq,
           case
               when u.holder is not null then 'parked'
               when m.delivery_seq <= (select last from valid) then 'kept'
               when m.is_alive then 'offered'
               else 'queued'
           end as fate
    from mine m
    left join unproven u on u.holder = m.holder
),
offered as materialized (
    select o.id, nextval('public.inbound_messages_delivery_seq') as delivery_seq
    from (select s.id from sorted s where s.fate = 'offered' order by s.seq limit :max_messages) o
),
held as (
    update public.inbound_messages m
    set held_by = :holder, lease = :lease::uuid, leased_until = pabal.now() + :hold::interval,
        delivery_seq = coalesce(o.delivery_seq, m.delivery_seq),
        delivered_at = case when o.id is null then m.delivered_at else pabal.now() end,
        delivery_count = m.delivery_count + case when o.id is null then 0 else 1 end
    from sorted s
    left join offered o on o.id = s.id
    where m.id = s.id and (s.fate = 'kept' or o.id is not null)
    returning m.id, m.lease, m.account_id, m.held_by, null::uuid as previous_lease, m.delivery_seq, m.conversation_key,
              m.kakao_payload, m.normalized, m.callback_expires_at, m.seq, m.created_at, m.delivery_count as attempt,
              0 as max_attempts, o.id is not null as is_offered
),
given_up as (
    update public.inbound_messages m
    set status = case when s.fate = 'parked' then 'DELIVERED' else 'QUEUED' end,
        lease = case when s.fate = 'parked' then m.lease end,
        leased_until = case when s.fate = 'parked' then m.leased_until end,
        held_by = case when s.fate = 'parked' then 'parked:' || substr(m.held_by, 8) end
    from sorted s
    left join offered o on o.id = s.id
    where m.id = s.id and s.fate <> 'kept' and o.id is null
)
select * from held order by delivery_seq;

-- name: requeue_parked_messages
-- Messages that were claimed for a stream after it was parked, before its process knew.
update public.inbound_messages m
set status = 'QUEUED', lease = null, leased_until = null, held_by = null
from (
    select m.id
    from public.inbound_messages m
    where m.account_id = :account and m.status = 'DELIVERED' and m.held_by = :holder
    order by m.id
    for no key update
) late
where m.id = late.id
returning m.account_id;

-- name: find_tokens_without_active_stream
-- Of these tokens, those that only have parked streams: the process of the active one is gone.
select distinct s.token_id
from public.relay_streams s
where s.token_id = any(:tokens::uuid[]) and s.parked_at is not null and s.alive_until > pabal.now()
  and not exists (
      select from public.relay_streams a
      where a.token_id = s.token_id and a.parked_at is null and a.alive_until > pabal.now()
  );

-- name: activate_parked_streams
-- The newest parked stream of each of these tokens, unless the token has an active one.
with newest as materialized (
    select distinct on (s.token_id) s.id
    from public.relay_streams s
    where s.token_id = any(:tokens::uuid[]) and s.parked_at is not null and s.alive_until > pabal.now()
      and not exists (
          select from public.relay_streams a
          where a.token_id = s.token_id and a.parked_at is null and a.alive_until > pabal.now()
      )
    order by s.token_id, s.opened_at desc, s.id desc
)
update public.relay_streams s set parked_at = null
from newest n
where s.id = n.id
returning s.id, s.account_id, s.token_id;

-- name: hold_parked_messages
-- A parked stream is active again: its client still has the messages that were left to their lease.
update public.inbound_messages m
set held_by = :holder::text, lease = :lease::uuid, leased_until = pabal.now() + :hold::interval
from (
    select m.id
    from public.inbound_messages m
    where m.account_id = :account and m.status = 'DELIVERED' and m.held_by = 'parked:' || substr(:holder::text, 8)
      and m.expires_at > pabal.now()
    order by m.id
    for no key update
) parked
where m.id = parked.id
returning m.id;
