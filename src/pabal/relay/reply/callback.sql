-- name: settle_callbacks
-- The fence decides: without it, nothing is settled. If a bot's reply was not sent at all, the callback is unspent and the
-- reply is kept like a late one. Late replies that went along with a failed POST wait to be shown again.
with settled as (
    update public.relay_replies r
    set spent_by = case when a.is_kept then null else r.spent_by end,
        outcome = case when a.is_kept then null when a.outcome = 'unsent' then 'refused' else a.outcome end,
        fence = case when a.is_kept then null else r.fence end,
        in_webhook = r.in_webhook and not a.is_kept,
        spent_at = case when a.is_kept then null else r.spent_at end,
        settled_at = case when a.is_kept then null else pabal.now() end,
        kept_until = case when a.is_kept then pabal.now() + :keep::interval else r.kept_until end,
        status_code = a.status_code, kakao = a.kakao::jsonb, error = a.error
    from (
        select a.*, a.outcome = 'unsent' and r.spent_by = 'agent' as is_kept, r.spent_by as spent_by
        from unnest(
            :ids::uuid[], :accounts::uuid[], :fences::uuid[], :outcomes::text[], :codes::integer[], :kakaos::text[],
            :errors::text[]
        ) as a (id, account_id, fence, outcome, status_code, kakao, error)
        join public.relay_replies r on r.id = a.id and r.account_id = a.account_id and r.fence = a.fence
        where r.outcome = 'sending'
        order by a.id
        for no key update of r
    ) a
    where r.id = a.id
    returning r.id, r.message_id, r.account_id, r.conversation_key, a.spent_by, a.outcome, r.error
),
unshown as (
    update public.relay_replies l
    set shown_at = null, shown_with = null
    from settled a
    where a.outcome in ('refused', 'unsent') and l.shown_with = a.message_id and l.account_id = a.account_id
),
noted as (
    insert into pabal.relay_event_outbox (event_type, payload)
    select 'relay.callback.failed', jsonb_build_object(
        'message_id', s.message_id, 'account_id', s.account_id, 'conversation_key', s.conversation_key,
        'spent_by', s.spent_by, 'outcome', s.outcome, 'why', s.error
    )
    from settled s
    where s.outcome <> 'sent'
)
select s.id, floor(extract(epoch from pabal.now()) * 1000)::bigint as settled_at_ms
from settled s;

-- name: drop_rest_of_texts
-- Kakao refused the beginning of these texts: the rest, which has the same time, is not shown. A beginning is full, so
-- no other block was joined to it.
update public.relay_replies l
set kept_until = pabal.now()
from public.relay_replies r
where r.id = any(:ids::uuid[]) and r.account_id = any(:accounts::uuid[])
  and l.continues = r.message_id and l.account_id = r.account_id and l.answered_at = r.answered_at
  and l.shown_at is null and jsonb_array_length(r.response -> 'template' -> 'outputs') = :max_outputs;

-- name: rescue_lost_callbacks
-- For all accounts: POSTs whose process ended without a result. They may have arrived, so they are never repeated.
with lost as (
    update public.relay_replies r
    set outcome = 'unknown', settled_at = pabal.now(), error = :error
    from (
        select id from public.relay_replies
        where outcome = 'sending' and spent_at < pabal.now() - :after::interval
        order by spent_at
        limit :batch
        for no key update skip locked
    ) l
    where r.id = l.id
    returning r.message_id, r.account_id, r.conversation_key, r.spent_by, r.error
)
insert into pabal.relay_event_outbox (event_type, payload)
select 'relay.callback.failed', jsonb_build_object(
    'message_id', l.message_id, 'account_id', l.account_id, 'conversation_key', l.conversation_key,
    'spent_by', l.spent_by, 'outcome', 'unknown', 'why', l.error
)
from lost l;

-- name: is_rescued
select exists (
    select from public.relay_replies
    where id = :id and account_id = :account and outcome = 'unknown' and error = :error
);

-- name: list_failing_channels
-- Counts the events that failures publish: the events of one source have an index on their time.
select split_part(e.payload ->> 'conversation_key', ':', 1) as channel, count(*) as failed
from pabal.hub_events('relay.callback.failed', pabal.now() - :span::interval) e
group by 1
having count(*) >= :min_failures
order by 1;

-- name: confirm_claims
-- After a commit whose answer was lost: which of these callbacks are claimed under the caller's own fences and not settled.
-- Only the process that made the fences knows them, and it has not posted yet.
select r.id, r.message_id, r.account_id, r.fence, m.callback_url,
       coalesce(m.callback_expires_at > pabal.now(), false) and r.spent_at > pabal.now() - :window::interval as is_usable,
       case when m.status in ('EXPIRED', 'CANCELLED') then m.reason end as end_reason, r.response::text as response_text,
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
from unnest(:ids::uuid[], :fences::uuid[]) as a (id, fence)
join public.relay_replies r on r.id = a.id and r.fence = a.fence
join public.inbound_messages m on m.id = r.message_id and m.account_id = r.account_id
where r.outcome = 'sending';
