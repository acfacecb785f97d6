-- name: claim_expiring_callbacks
-- For all accounts. The hub claims a callback as a bot does, by inserting the row in relay_replies under an id and a
-- fence of the calling process. A message whose reply is being stored is locked and skipped; a reply committed since
-- our snapshot is a conflict. The users of expired and cancelled messages get a text as well, except of erased ones.
with due as materialized (
    select m.id as message_id, m.account_id, m.conversation_key, m.callback_url,
           case when m.status in ('EXPIRED', 'CANCELLED') then m.reason end as end_reason
    from public.inbound_messages m
    where m.callback_expires_at > pabal.now() and m.callback_expires_at <= pabal.now() + :time_left::interval
      and m.reason is distinct from 'erased'
      and not exists (
          select from public.relay_replies r where r.message_id = m.id and r.account_id = m.account_id
      )
    order by m.callback_expires_at
    limit :batch
    for no key update of m skip locked
),
claims as materialized (
    select * from unnest(:ids::uuid[], :fences::uuid[]) with ordinality as c (id, fence, nth)
),
spent as (
    insert into public.relay_replies (id, message_id, account_id, conversation_key, spent_by, outcome, fence, spent_at)
    select c.id, d.message_id, d.account_id, d.conversation_key, 'hub', 'sending', c.fence, pabal.now()
    from (select d.*, row_number() over (order by d.message_id) as nth from due d) d
    join claims c on c.nth = d.nth
    order by d.message_id
    on conflict (message_id) do nothing
    returning id, message_id, account_id, conversation_key, fence
),
oldest as materialized (
    select distinct on (s.conversation_key) s.message_id, s.account_id, s.conversation_key
    from spent s
    join due d on d.message_id = s.message_id
    join public.conversation_mappings c  -- `is not distinct from` keeps the planner off the account's index: one row by key
        on c.conversation_key = s.conversation_key and c.account_id is not distinct from s.account_id and c.state = 'PAIRED'
    where d.end_reason is null
    order by s.conversation_key, s.message_id
),
waiting as materialized (
    select s.message_id, s.account_id, l.*
    from oldest s
    cross join lateral (
        select l.id, l.answered_at, l.response -> 'template' -> 'outputs' as outputs
        from public.relay_replies l
        where l.conversation_key = s.conversation_key and l.account_id = s.account_id and l.kept_until > pabal.now()
          and l.shown_at is null and (l.waits_until is null or l.waits_until <= pabal.now())
          and jsonb_array_length(l.response -> 'template' -> 'outputs') <= :max_outputs
          and pabal.waits_for_beginning(l.continues, l.account_id, :max_outputs) is not true
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
    where w.size <= :max_outputs
),
shown as (
    update public.relay_replies l
    set shown_at = pabal.now(), shown_with = w.message_id
    from fitting w
    where l.id = w.id and l.account_id = w.account_id
)
select s.id, s.message_id, s.account_id, s.fence, d.callback_url, d.end_reason,
       (
           select jsonb_agg(e.value order by w.answered_at, w.id, e.nth)
           from fitting w, jsonb_array_elements(w.outputs) with ordinality as e (value, nth)
           where w.message_id = s.message_id
       ) as late_outputs
from spent s
join due d on d.message_id = s.message_id;
