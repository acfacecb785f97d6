-- name: open_stream
-- One statement, so that nothing is locked while its answer is on the way: the function waits for the locks and then reads.
-- Each row repeats the stream; the message columns are those of a message that moved to it, if any.
select o.*, m.*
from pabal.open_relay_stream(:token_hash, :id, :process, :last, :life, :window, :max_streams, :max_parked) o
left join lateral pabal.resume_relay_messages(
    case when o.has_held then o.account_id end, o.token_id, :id, :lease, :hold, :last, :max_messages
) m on true
order by m.delivery_seq;

-- name: lock_stream_accounts
-- Before the tokens, as `open_relay_stream` does: a stream that another token opens waits, and then counts the activated ones.
select pabal.lock_names('relay stream of account', array(
    select distinct s.account_id::text from public.relay_streams s
    where s.token_id = any(:tokens::uuid[]) and s.account_id is not null
));

-- name: lock_stream_tokens
select pabal.lock_names('relay stream of token', :tokens::uuid[]::text[]);

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
-- The newest parked stream of each of these tokens, unless the token has an active one or its account has max_streams already.
-- Of several tokens of one account, those whose client connected last come first.
with newest as materialized (
    select distinct on (s.token_id) s.id, s.account_id, s.opened_at
    from public.relay_streams s
    where s.token_id = any(:tokens::uuid[]) and s.parked_at is not null and s.alive_until > pabal.now()
      and not exists (
          select from public.relay_streams a
          where a.token_id = s.token_id and a.parked_at is null and a.alive_until > pabal.now()
      )
    order by s.token_id, s.opened_at desc, s.id desc
),
ranked as (
    select n.id, n.account_id, row_number() over (partition by n.account_id order by n.opened_at desc, n.id desc) as place
    from newest n
)
update public.relay_streams s set parked_at = null
from ranked r
where s.id = r.id
  and (
      r.account_id is null
      or r.place + (
          select count(*) from public.relay_streams a
          where a.account_id = r.account_id and a.parked_at is null and a.alive_until > pabal.now()
      ) <= :max_streams
  )
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
