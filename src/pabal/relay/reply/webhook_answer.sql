-- name: close_webhooks
-- A reply that is stored from now on does not wait for these webhooks. The message's lock orders us against replies: one that
-- was stored before is visible to the next statement.
update public.inbound_messages m
set webhook_open_until = pabal.now()
from (
    select m.id
    from public.inbound_messages m
    where m.id = any(:messages::uuid[]) and m.account_id = any(:accounts::uuid[]) and m.webhook_open_until > pabal.now()
    order by m.id
    for no key update
) open
where m.id = open.id;

-- name: take_answers
-- Claim the stored replies to these messages for the responses to their webhooks, before these are written. The fence is of
-- the calling process: a reply that it claimed already is returned again. Late replies go along as with a callback.
with waits as materialized (
    select m.id as message_id, m.account_id, m.conversation_key, a.fence
    from unnest(:messages::uuid[], :accounts::uuid[], :fences::uuid[]) as a (message_id, account_id, fence)
    join public.inbound_messages m on m.id = a.message_id and m.account_id = a.account_id
    join public.conversation_mappings c  -- `is not distinct from` keeps the planner off the account's index: one row by key
        on c.conversation_key = m.conversation_key and c.account_id is not distinct from m.account_id and c.state = 'PAIRED'
    where m.status <> 'CANCELLED'
    order by m.id
    for no key update of m
),
spent as (
    update public.relay_replies r
    set spent_by = 'agent', outcome = 'sending', fence = w.fence, spent_at = pabal.now(), kept_until = null, waits_until = null,
        in_webhook = true
    from waits w
    where r.message_id = w.message_id and r.account_id = w.account_id and r.spent_by is null and r.shown_at is null
      and r.kept_until > pabal.now()
    returning r.id, r.message_id, r.account_id, r.conversation_key, r.fence, r.response
),
late as materialized (
    select s.message_id, s.account_id, l.*
    from spent s
    cross join lateral (
        select l.id, l.answered_at, l.response -> 'template' -> 'outputs' as outputs,
               :max_outputs - coalesce(jsonb_array_length(s.response -> 'template' -> 'outputs'), :max_outputs) as free_outputs
        from public.relay_replies l
        where l.conversation_key = s.conversation_key and l.account_id = s.account_id and l.kept_until > pabal.now()
          and l.shown_at is null and l.id <> s.id
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
select s.message_id
from spent s;

-- name: find_webhook_answers
-- The replies that were claimed for the responses to these webhooks, with what goes along: the same for every repeat, except
-- whether there are more late replies now.
select r.id, r.message_id, r.account_id, r.fence, r.outcome = 'sending' as is_sending, m.callback_url,
       coalesce(m.callback_expires_at > pabal.now(), false) as is_callback_live, r.response::text as response_text,
       (
           select jsonb_agg(e.value order by l.answered_at, l.id, e.nth)
           from public.relay_replies l, jsonb_array_elements(l.response -> 'template' -> 'outputs') with ordinality as e (value, nth)
           where l.shown_with = r.message_id and l.account_id = r.account_id and l.continues is distinct from r.message_id
       ) as late_outputs,
       (
           select jsonb_agg(e.value order by l.answered_at, l.id, e.nth)
           from public.relay_replies l, jsonb_array_elements(l.response -> 'template' -> 'outputs') with ordinality as e (value, nth)
           where l.shown_with = r.message_id and l.account_id = r.account_id and l.continues = r.message_id
       ) as further_outputs,
       exists (
           select from public.relay_replies l
           where l.conversation_key = r.conversation_key and l.account_id = r.account_id and l.kept_until > pabal.now()
             and l.shown_at is null and (l.waits_until is null or l.waits_until <= pabal.now() or l.continues = r.message_id)
             and jsonb_array_length(l.response -> 'template' -> 'outputs') > 0
       ) as has_more
from public.relay_replies r
join public.inbound_messages m on m.id = r.message_id and m.account_id = r.account_id
where r.message_id = any(:messages::uuid[]) and r.account_id = any(:accounts::uuid[]) and r.in_webhook;

-- name: move_to_callback
-- An answer that was claimed for a webhook and not written: it is posted to the callback, and a repeated webhook does not get it.
update public.relay_replies
set in_webhook = false
where id = :id and account_id = :account and fence = :fence and outcome = 'sending';
