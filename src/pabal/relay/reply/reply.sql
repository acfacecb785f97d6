-- name: claim_callbacks
-- One statement for a batch of replies: authenticate the tokens, apply the rate limits, find the messages, and claim
-- their callbacks by inserting into relay_replies. A concurrent claim may have committed after our snapshot; only the
-- row lock on the message and the conflict on relay_replies show it, so nothing else may decide who was first. Every
-- statement locks in the same order: limits by account, messages by id. While a message's webhook is held open, its
-- reply is stored for the process that holds it, which claims the reply (`webhook_answer.sql`).
with replies as materialized (
    select *
    from unnest(
        :tokens::text[], :messages::uuid[], :conversations::text[], :responses::text[], :hashes::bytea[], :sizes::integer[],
        :ids::uuid[], :fences::uuid[], :joining::uuid[], :rests::text[]
    ) with ordinality as b (token, message_id, conversation_key, response, hash, size, id, fence, joined_fence, rest, position)
),
principals as materialized (
    select b.position, t.account_id, t.is_paired, a.disabled_at is not null as is_disabled,
           greatest(interval '1 minute' / coalesce(a.rate_limit_per_minute, 600), interval '1 microsecond') as step
    from replies b
    cross join lateral (
        select o.id as account_id, true as is_paired
        from public.accounts o
        where o.relay_token_hash = b.token
        union all
        select s.account_id, s.paired_at is not null and s.disconnected_at is null
        from public.relay_sessions s
        where s.token_hash = b.token and s.revoked_at is null and (s.account_id is not null or s.expires_at > pabal.now())
    ) t
    left join public.accounts a on a.id = t.account_id
),
requested as materialized (
    select account_id, min(step) as step, count(*)::integer as reply_count
    from principals
    where is_paired and not is_disabled
    group by account_id
    order by account_id
),
granted as materialized (
    select account_id, reply_count,
           pabal.take_limit('relay requests:' || account_id, step, interval '1 minute', reply_count) as allowed
    from requested
),
-- Replies above the limit, repeats among them, have a limit of their own.
excess as materialized (
    select g.account_id, pabal.take_limit(
        'relay replies above the limit:' || g.account_id, interval '1 minute' / :max_waiting, interval '1 minute', g.reply_count - g.allowed
    ) as allowed
    from (select * from granted where allowed < reply_count order by account_id) g  -- all limits above are locked before
),
-- A reply above the limit is admitted to wait, as long as not too many of its account do.
admitted as materialized (
    select b.position, b.account_id, b.nth <= g.allowed as is_granted
    from (
        select position, account_id, row_number() over (partition by account_id order by position) as nth
        from principals
        where is_paired and not is_disabled
    ) b
    join granted g on g.account_id = b.account_id
    left join excess x on x.account_id = b.account_id
    where b.nth <= g.allowed + case when x.allowed > 0 then greatest(0, least(x.allowed, :max_waiting - (
        select count(*) from public.relay_replies w where w.account_id = g.account_id and w.waits_until > pabal.now()
    ))) else 0 end
),
answerable as materialized (
    select b.position, b.id, b.fence, b.response, b.hash, b.size, b.joined_fence, m.id as message_id, a.account_id, m.conversation_key, m.callback_url,
           coalesce(m.callback_expires_at > pabal.now(), false) as is_live,
           coalesce(m.webhook_open_until > pabal.now(), false) as is_open,
           a.is_granted and coalesce(m.callback_expires_at > pabal.now(), false)
               and (m.webhook_open_until is null or m.webhook_open_until <= pabal.now()) as is_spendable,
           case when m.callback_expires_at > pabal.now() then m.callback_expires_at else m.webhook_open_until end as answerable_until,
           pabal.now() - m.created_at as delay
    from admitted a
    join replies b on b.position = a.position
    join public.inbound_messages m on m.id = b.message_id and m.account_id = a.account_id
    join public.conversation_mappings c  -- `is not distinct from` keeps the planner off the account's index: one row by key
        on c.conversation_key = m.conversation_key and c.account_id is not distinct from a.account_id and c.state = 'PAIRED'
    where m.status <> 'CANCELLED' and (b.conversation_key is null or b.conversation_key = m.conversation_key)
    order by m.id
    for no key update of m
),
firsts as materialized (
    select distinct on (message_id) * from answerable order by message_id, position
),
answered as (
    insert into public.relay_replies as r (
        id, message_id, account_id, conversation_key, spent_by, outcome, fence, spent_at, response, response_hash, answered_at,
        kept_until, waits_until
    )
    select f.id, f.message_id, f.account_id, f.conversation_key,
           case when f.is_spendable then 'agent' end, case when f.is_spendable then 'sending' end,
           case when f.is_spendable then f.fence end, case when f.is_spendable then pabal.now() end,
           f.response::jsonb, f.hash, pabal.now(),
           case when not f.is_spendable then pabal.now() + :keep::interval end,
           case when (f.is_live or f.is_open) and not f.is_spendable then f.answerable_until end
    from firsts f
    order by f.message_id
    on conflict (message_id) do update  -- the hub spent the callback on a stall: this reply is late
    set response = excluded.response, response_hash = excluded.response_hash, answered_at = excluded.answered_at,
        kept_until = pabal.now() + :keep::interval
    where r.response is null
    returning id, message_id, account_id, fence, answered_at, waits_until
),
ended as (
    update public.inbound_messages m
    set status = 'ACKED', reason = 'answered', acked_at = coalesce(m.acked_at, pabal.now()),
        ended_at = coalesce(m.ended_at, pabal.now()), lease = null, leased_until = null
    from answered a
    where m.id = a.message_id and m.account_id = a.account_id and m.status <> 'EXPIRED'
    returning m.id, m.ended_at = pabal.now() as is_new
),
-- Further blocks of an answer that arrived together with its first one go along with its POST.
joined as (
    insert into public.relay_replies (
        id, continues, account_id, conversation_key, response, response_hash, answered_at, kept_until, shown_at, shown_with
    )
    select b.id, b.message_id, b.account_id, b.conversation_key, b.response::jsonb, b.hash, pabal.now(),
           pabal.now() + :keep::interval, pabal.now(), b.message_id
    from answerable b
    join answered r on r.message_id = b.message_id and r.fence = b.joined_fence
    order by b.message_id, b.position
    returning id
),
spent as materialized (
    select distinct on (f.conversation_key) f.message_id, f.account_id, f.conversation_key, :max_outputs::integer - f.size as free_outputs
    from answered r
    join firsts f on f.message_id = r.message_id and f.fence = r.fence
    order by f.conversation_key, f.position
),
waiting as materialized (
    select s.message_id, s.account_id, s.free_outputs, l.*
    from spent s
    cross join lateral (
        select l.id, l.answered_at, l.response -> 'template' -> 'outputs' as outputs
        from public.relay_replies l
        where l.conversation_key = s.conversation_key and l.account_id = s.account_id and l.kept_until > pabal.now()
          and l.shown_at is null and (l.waits_until is null or l.waits_until <= pabal.now())
          and jsonb_array_length(l.response -> 'template' -> 'outputs') <= s.free_outputs
          and pabal.waits_for_beginning(l.continues, l.account_id, s.free_outputs) is not true
        order by l.answered_at, l.id
        limit :max_outputs
        for no key update skip locked
    ) l
),
fitting as materialized (
    select * from (
        select w.*, sum(jsonb_array_length(w.outputs)) over (partition by w.message_id order by w.answered_at, w.id) as size
        from waiting w
    ) w
    where w.size <= w.free_outputs
),
shown as (
    update public.relay_replies l
    set shown_at = pabal.now(), shown_with = w.message_id
    from fitting w
    where l.id = w.id and l.account_id = w.account_id
)
select case
           when o.position is null then 'unknown'
           when o.is_disabled then 'disabled'
           when not o.is_paired then 'unpaired'
           when a.position is null then 'limited'
           when f.position is null and not a.is_granted then 'limited'
           when f.position is null then 'missing'
           when j.id is not null then 'joined'
           when r.message_id is null then 'answered'
           when r.fence = b.fence then 'spent'
           when r.waits_until is not null then 'waiting'
           else 'late'
       end as verdict,
       o.step, b.id, f.message_id, f.account_id, b.fence, f.callback_url,
       (
           select jsonb_agg(e.value order by w.answered_at, w.id, e.nth)
           from fitting w, jsonb_array_elements(w.outputs) with ordinality as e (value, nth)
           where w.message_id = f.message_id and r.fence = b.fence
       ) as late_outputs,
       r.fence = b.fence and (b.rest is not null or exists (
           select from public.relay_replies l
           where l.conversation_key = f.conversation_key and l.account_id = f.account_id and l.kept_until > pabal.now()
             and l.shown_at is null and (l.waits_until is null or l.waits_until <= pabal.now())
             and jsonb_array_length(l.response -> 'template' -> 'outputs') > 0
             and l.id not in (select w.id from fitting w)
       )) as has_more,
       coalesce(e.is_new, false) as ended, r.waits_until is not null and f.is_open as is_open,
       case when r.message_id is not null then f.delay end as delay,
       -- A long text is stored whole, so that nothing is lost between its beginning and the rest.
       case when b.rest is not null and r.message_id is not null
           then pabal.keep_rest_of_text(r.message_id, f.account_id, f.conversation_key, r.answered_at, :keep, r.waits_until, b.rest)
       end as rest_count
from replies b
left join principals o on o.position = b.position
left join admitted a on a.position = b.position
left join answerable f on f.position = b.position
left join firsts t on t.position = b.position
left join joined j on j.id = b.id
left join answered r on r.message_id = t.message_id
left join ended e on e.id = r.message_id
order by b.position;

-- name: claim_late_outputs
-- Late replies for an immediate response: oldest first, as many as fit, and only those of the account that the conversation
-- is paired with now. The message they are shown with is locked before them, as by every statement: the caller saves the
-- response in it. If another request of a repeated webhook has saved one meanwhile, it is returned.
with message as materialized (
    select m.id, m.answer
    from public.inbound_messages m
    where m.id = :shown_with::uuid and exists (
        select from public.relay_replies l
        where l.conversation_key = :conversation_key and l.kept_until > pabal.now() and l.shown_at is null
    )
    for no key update
),
waiting as materialized (
    select l.id, l.message_id, l.answered_at, l.response -> 'template' -> 'outputs' as outputs
    from (select bool_or(m.answer is not null) as has_response from message m) locked  -- no row of this join is locked before the message is
    cross join public.conversation_mappings a
    join public.relay_replies l on l.conversation_key = a.conversation_key and l.account_id = a.account_id
    where locked.has_response is not true and a.conversation_key = :conversation_key and a.state = 'PAIRED'
      and l.kept_until > pabal.now() and l.shown_at is null and (l.waits_until is null or l.waits_until <= pabal.now())
      and jsonb_array_length(l.response -> 'template' -> 'outputs') <= :max_outputs
      and pabal.waits_for_beginning(l.continues, l.account_id, :max_outputs) is not true
    order by l.answered_at, l.id
    limit :max_outputs
    for no key update of l skip locked
),
fitting as materialized (
    select * from (
        select w.*, sum(jsonb_array_length(w.outputs)) over (order by w.answered_at, w.id) as size from waiting w
    ) w
    where w.size <= :max_outputs
),
shown as (
    update public.relay_replies l
    set shown_at = pabal.now(), shown_with = :shown_with
    from fitting w
    where l.id = w.id
)
select coalesce((
           select jsonb_agg(e.value order by w.answered_at, w.id, e.nth)
           from fitting w, jsonb_array_elements(w.outputs) with ordinality as e (value, nth)
       ), '[]') as outputs,
       exists (select from fitting w where w.message_id = :shown_with) as has_answer,
       coalesce(  -- the locked row is newer than our snapshot
           (select m.answer from message m), (select m.answer from public.inbound_messages m where m.id = :shown_with)
       ) as first_response;
