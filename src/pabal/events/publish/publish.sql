-- name: insert_events
-- One statement for all drafts, in their order. Skips drafts whose idempotency key was used before or whose target does not
-- exist; find_skipped_drafts then tells which, after a concurrent publisher of the same key has committed.
insert into public.event_queue (
    id, source_service, event_type, target_service, payload, priority, max_retries, next_retry_at, expires_at,
    idempotency_key, content_hash, ordering_key, correlation_id, traceparent
)
select b.id, b.source, b.event_type, b.target, b.payload::jsonb, b.priority, b.max_retries, b.deliver_at, b.expires_at,
       b.key,
       case when b.key is not null then pabal.content_hash(
           b.event_type, b.target, b.payload::jsonb, b.priority, b.max_retries, b.deliver_at, b.expires_at, b.ordering_key
       ) end,
       b.ordering_key, b.correlation_id, b.traceparent
from unnest(
    :ids::uuid[], :sources::text[], :event_types::text[], :targets::text[], :payloads::text[], :priorities::integer[],
    :max_retries::integer[], :deliver_ats::timestamptz[], :expires_ats::timestamptz[], :keys::text[],
    :ordering_keys::text[], :correlation_ids::text[], :traceparents::text[]
) with ordinality as b (
    id, source, event_type, target, payload, priority, max_retries, deliver_at, expires_at, key, ordering_key,
    correlation_id, traceparent, ordinal
)
where b.target is null or exists (select from public.services s where s.name = b.target)
order by b.ordinal
on conflict (source_service, idempotency_key) where idempotency_key is not null do nothing
returning id, status, created_at;

-- name: find_skipped_drafts
-- Why drafts were skipped: the first event with their key, and whether its content is the same. The payload of a draft without
-- a target was never parsed and is not parsed here: it could fail after the commit of the recorded events.
select b.id as draft_id, e.id, e.status, e.created_at,
       case when e.id is not null and t.target_exists then e.content_hash is not distinct from pabal.content_hash(
           b.event_type, b.target, b.payload::jsonb, b.priority, b.max_retries, b.deliver_at, b.expires_at, b.ordering_key
       ) else false end as is_same_content,
       t.target_exists
from unnest(
    :ids::uuid[], :sources::text[], :event_types::text[], :targets::text[], :payloads::text[], :priorities::integer[],
    :max_retries::integer[], :deliver_ats::timestamptz[], :expires_ats::timestamptz[], :keys::text[], :ordering_keys::text[]
) as b (
    id, source, event_type, target, payload, priority, max_retries, deliver_at, expires_at, key, ordering_key
)
cross join lateral (
    select b.target is null or exists (select from public.services s where s.name = b.target) as target_exists
) t
left join public.event_queue e on e.source_service = b.source and e.idempotency_key = b.key;

-- name: expire_idempotency_keys
-- The event stays.
update public.event_queue
set idempotency_key = null, content_hash = null
where id = any(array(
    select id
    from public.event_queue
    where idempotency_key is not null and created_at < pabal.now() - :keep::interval
    order by created_at
    limit :batch
    for no key update skip locked
));
