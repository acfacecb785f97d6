-- name: list_waiting_replies
-- For all accounts: the oldest waiting reply of each conversation, so that a user reads the replies in order. Urgent ones
-- come first, then the first of each account in random order: an account that has used up its limit hides no other's.
-- Not the reply that a held webhook waits for.
select r.id
from (
    select distinct on (r.conversation_key) r.id, r.account_id, r.answered_at, r.waits_until
    from public.relay_replies r
    join public.inbound_messages m on m.id = r.message_id and m.account_id = r.account_id
    join public.conversation_mappings c  -- `is not distinct from` keeps the planner off the account's index: one row by key
        on c.conversation_key = r.conversation_key and c.account_id is not distinct from r.account_id and c.state = 'PAIRED'
    where r.waits_until > pabal.now() and m.callback_expires_at > pabal.now() and m.status <> 'CANCELLED'
      and (m.webhook_open_until is null or m.webhook_open_until <= pabal.now())
    order by r.conversation_key, r.answered_at, r.id
) r
order by r.waits_until <= pabal.now() + :urgent::interval desc,
         row_number() over (partition by r.account_id order by r.answered_at, r.id), random()
limit :limit;

-- name: claim_waiting_replies
-- For all accounts: claim the callbacks of waiting replies as far as the rate limits of their accounts allow. A callback
-- that is about to expire is claimed in any case: without the reply, the stall would spend it. Locks limits by account
-- before messages, as claiming a callback does; locked messages are left for the next poll.
with waiting as materialized (
    select r.id, c.fence, r.account_id, r.message_id, r.conversation_key, r.answered_at,
           r.waits_until <= pabal.now() + :urgent::interval as is_urgent,
           greatest(interval '1 minute' / coalesce(a.rate_limit_per_minute, 600), interval '1 microsecond') as step
    from unnest(:ids::uuid[], :fences::uuid[]) as c (id, fence)
    join public.relay_replies r on r.id = c.id and r.waits_until > pabal.now()
    join public.accounts a on a.id = r.account_id and a.disabled_at is null
),
requested as materialized (
    select account_id, min(step) as step, count(*)::integer as reply_count
    from waiting
    where not is_urgent
    group by account_id
    order by account_id
),
granted as materialized (
    select account_id, pabal.take_limit('relay requests:' || account_id, step, interval '1 minute', reply_count) as allowed
    from requested
),
allowed as materialized (
    select w.id, w.fence, w.account_id, w.message_id, w.conversation_key
    from (
        select w.*, row_number() over (partition by w.account_id, w.is_urgent order by w.answered_at, w.id) as nth from waiting w
    ) w
    left join granted g on g.account_id = w.account_id
    where w.is_urgent or w.nth <= g.allowed
),
due as materialized (
    select a.*, m.callback_url
    from allowed a
    join public.inbound_messages m on m.id = a.message_id and m.account_id = a.account_id
    join public.conversation_mappings c  -- `is not distinct from` keeps the planner off the account's index: one row by key
        on c.conversation_key = m.conversation_key and c.account_id is not distinct from a.account_id and c.state = 'PAIRED'
    where m.callback_expires_at > pabal.now() and m.status <> 'CANCELLED'
      and (m.webhook_open_until is null or m.webhook_open_until <= pabal.now())
    order by m.id
    for no key update of m skip locked
),
spent as (
    update public.relay_replies r
    set spent_by = 'agent', outcome = 'sending', fence = d.fence, spent_at = pabal.now(), kept_until = null, waits_until = null
    from due d
    where r.id = d.id and r.waits_until is not null and r.shown_at is null
    returning r.id, r.message_id, r.account_id, r.conversation_key, r.fence, r.response
),
late as materialized (
    select s.message_id, s.account_id, l.*
    from spent s
    cross join lateral (
        select l.id, l.answered_at, l.continues is not distinct from s.message_id as is_further,
               l.response -> 'template' -> 'outputs' as outputs,
               :max_outputs - coalesce(jsonb_array_length(s.response -> 'template' -> 'outputs'), :max_outputs) as free_outputs
        from public.relay_replies l
        where l.conversation_key = s.conversation_key and l.account_id = s.account_id and l.kept_until > pabal.now()
          and l.shown_at is null
          and (l.waits_until is null or l.waits_until <= pabal.now() or l.continues = s.message_id)
          and jsonb_array_length(l.response -> 'template' -> 'outputs')
              <= :max_outputs - jsonb_array_length(s.response -> 'template' -> 'outputs')
          and (l.continues = s.message_id or pabal.waits_for_beginning(
              l.continues, l.account_id, :max_outputs - jsonb_array_length(s.response -> 'template' -> 'outputs')
          ) is not true)
        order by l.answered_at, l.id
        limit :max_outputs
        for no key update skip locked
    ) l
),
fitting as materialized (
    select * from (
        select l.*, sum(jsonb_array_length(l.outputs)) over (partition by l.message_id order by l.answered_at, l.id) as size
        from late l
    ) l
    where l.size <= l.free_outputs
),
shown as (
    update public.relay_replies l
    set shown_at = pabal.now(), shown_with = f.message_id
    from fitting f
    where l.id = f.id and l.account_id = f.account_id
),
-- Further blocks that do not fit no longer wait with their beginning.
released as (
    update public.relay_replies l
    set waits_until = null
    from spent s
    where l.continues = s.message_id and l.account_id = s.account_id and l.waits_until is not null
      and l.id not in (select f.id from fitting f)
)
select s.id, s.message_id, s.account_id, s.fence, d.callback_url, s.response::text as response_text,
       (
           select jsonb_agg(e.value order by f.answered_at, f.id, e.nth)
           from fitting f, jsonb_array_elements(f.outputs) with ordinality as e (value, nth)
           where f.message_id = s.message_id and not f.is_further
       ) as late_outputs,
       (
           select jsonb_agg(e.value order by f.answered_at, f.id, e.nth)
           from fitting f, jsonb_array_elements(f.outputs) with ordinality as e (value, nth)
           where f.message_id = s.message_id and f.is_further
       ) as further_outputs,
       exists (
           select from public.relay_replies l
           where l.conversation_key = s.conversation_key and l.account_id = s.account_id and l.kept_until > pabal.now()
             and l.shown_at is null and (l.waits_until is null or l.waits_until <= pabal.now() or l.continues = s.message_id)
             and jsonb_array_length(l.response -> 'template' -> 'outputs') > 0
             and l.id <> s.id and l.id not in (select f.id from fitting f)
       ) as has_more
from spent s
join due d on d.id = s.id;
