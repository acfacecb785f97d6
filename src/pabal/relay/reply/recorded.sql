-- name: find_recorded_replies
-- What became of the reply to a message, and of a further block with the same response. Rows older than the column have no
-- hash: their response itself is compared.
select a.position, f.id, f.fence, f.state, f.error, f.waits_until is not null as has_waited,
       coalesce(f.waits_until > pabal.now(), false) as is_waiting,
       floor(extract(epoch from f.settled_at) * 1000)::bigint as settled_at_ms,
       coalesce(f.response_hash in (a.hash, a.plain_hash), f.response = a.response::jsonb, false) as is_repeat,
       s.id as further_id, coalesce(s.shown_with = s.continues, false) as is_joined
from unnest(:accounts::uuid[], :messages::uuid[], :hashes::bytea[], :plain_hashes::bytea[], :responses::text[])
    with ordinality as a (account_id, message_id, hash, plain_hash, response, position)
join public.relay_replies f on f.message_id = a.message_id and f.account_id = a.account_id
left join public.relay_replies s
    on s.continues = a.message_id and s.response_hash in (a.hash, a.plain_hash) and s.account_id = a.account_id;

-- name: join_further_replies
-- Further blocks that go along with the POST of the first one, which the caller is about to make under these fences.
-- The lock on the message orders it against the blocks' own requests: one that has kept its block already loses it to
-- the POST.
with blocks as materialized (
    select *
    from unnest(:fences::uuid[], :ids::uuid[], :accounts::uuid[], :messages::uuid[], :hashes::bytea[], :responses::text[])
        with ordinality as a (fence, id, account_id, message_id, hash, response, position)
),
messages as materialized (
    select m.id, m.account_id, m.conversation_key
    from public.inbound_messages m
    where m.id = any(:messages::uuid[]) and m.account_id = any(:accounts::uuid[])
    order by m.id
    for no key update
),
joined as (
    insert into public.relay_replies as l (
        id, continues, account_id, conversation_key, response, response_hash, answered_at, kept_until, shown_at, shown_with
    )
    select b.id, m.id, m.account_id, m.conversation_key, b.response::jsonb, b.hash, pabal.now(), pabal.now() + :keep::interval,
           pabal.now(), m.id
    from blocks b
    join messages m on m.id = b.message_id and m.account_id = b.account_id
    join public.relay_replies f
        on f.message_id = m.id and f.account_id = m.account_id and f.fence = b.fence and f.outcome = 'sending'
    order by m.id, b.position
    on conflict (continues, response_hash) where continues is not null do update
    set shown_at = excluded.shown_at, shown_with = excluded.shown_with
    where l.shown_at is null and l.kept_until > pabal.now()
    returning continues, response_hash
)
select b.position
from blocks b
join joined j on j.continues = b.message_id and j.response_hash = b.hash;

-- name: keep_further_replies
-- One statement for a batch. The lock on the message orders it against a cancellation and against other blocks of the
-- message, which are counted after the lock: our snapshot may be older than theirs. A block that is kept already is a
-- conflict. Beside a waiting reply, a block waits as well, so that it is not shown before it. The parts of a long text
-- follow its block, and the block alone decides whether they are kept.
with blocks as materialized (
    select a.*, row_number() over (partition by a.message_id order by a.position) - a.part as nth
    from unnest(:ids::uuid[], :accounts::uuid[], :messages::uuid[], :parts::integer[], :hashes::bytea[], :responses::text[])
        with ordinality as a (id, account_id, message_id, part, hash, response, position)
),
locked as materialized (
    select m.id, m.account_id, m.conversation_key
    from public.inbound_messages m
    where m.id = any(:messages::uuid[]) and m.account_id = any(:accounts::uuid[]) and m.status <> 'CANCELLED'
    order by m.id
    for no key update
),
messages as materialized (
    select m.*, pabal.count_further_replies(m.id) as further_count
    from locked m
),
kept as (
    insert into public.relay_replies (
        id, continues, account_id, conversation_key, response, response_hash, answered_at, kept_until, waits_until
    )
    select b.id, m.id, m.account_id, m.conversation_key, b.response::jsonb, b.hash, pabal.now(), pabal.now() + :keep::interval,
           f.waits_until
    from blocks b
    join messages m on m.id = b.message_id and m.account_id = b.account_id
    left join public.relay_replies f on f.message_id = m.id and f.account_id = m.account_id
    where b.nth + m.further_count <= :max_blocks
    order by m.id, b.position
    on conflict (continues, response_hash) where continues is not null do nothing
    returning id
)
select b.position, k.id is not null as is_kept
from blocks b
left join kept k on k.id = b.id;
