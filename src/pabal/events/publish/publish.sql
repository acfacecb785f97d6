-- name: insert_events
-- One statement for all drafts, in their order. Skips drafts whose idempotency key is in use or whose target does not exist;
-- find_skipped_drafts then tells which, after a concurrent publisher of the same key has committed. Keys are recorded in their
-- own order, so that two batches with the same keys wait for each other and never in a circle. A draft with a key that is in use
-- is parsed here too: a payload that PostgreSQL refuses must fail before the commit of the other events.
-- With a :notification, the other processes wake up at the commit. A full queue of notifications would fail it.
with keyed as (
    insert into pabal.event_keys as k (source_service, idempotency_key, event_id, content_hash)
    select distinct on (b.source collate "C", b.key collate "C") b.source, b.key, b.id, b.content_hash
    from (
        select b.id, b.source, b.key, b.ordinal, pabal.content_hash(
                   b.event_type, b.target, b.payload::jsonb, b.priority, b.max_retries, b.deliver_at, b.expires_at, b.ordering_key
               ) as content_hash
        from unnest(
            :ids::uuid[], :sources::text[], :event_types::text[], :targets::text[], :payloads::text[], :priorities::integer[],
            :max_retries::integer[], :deliver_ats::timestamptz[], :expires_ats::timestamptz[], :keys::text[],
            :ordering_keys::text[]
        ) with ordinality as b (
            id, source, event_type, target, payload, priority, max_retries, deliver_at, expires_at, key, ordering_key, ordinal
        )
        where cardinality(array_remove(:keys::text[], null)) > 0  -- evaluated once: without keys, nothing is read
          and b.key is not null
          and (b.target is null or exists (select from public.services s where s.name = b.target and s.removed_at is null))
    ) b
    order by b.source collate "C", b.key collate "C", b.ordinal
    on conflict (source_service, idempotency_key) do update
    set event_id = excluded.event_id, content_hash = excluded.content_hash, created_at = excluded.created_at
    where k.created_at <= pabal.event_key_cutoff()
    returning k.event_id
)
insert into public.event_queue (
    id, source_service, event_type, target_service, payload, priority, max_retries, next_retry_at, expires_at,
    idempotency_key, ordering_key, correlation_id, traceparent
)
select b.id, b.source, b.event_type, b.target, b.payload::jsonb, b.priority, b.max_retries, b.deliver_at, b.expires_at,
       b.key, b.ordering_key, b.correlation_id, b.traceparent
from unnest(
    :ids::uuid[], :sources::text[], :event_types::text[], :targets::text[], :payloads::text[], :priorities::integer[],
    :max_retries::integer[], :deliver_ats::timestamptz[], :expires_ats::timestamptz[], :keys::text[],
    :ordering_keys::text[], :correlation_ids::text[], :traceparents::text[]
) with ordinality as b (
    id, source, event_type, target, payload, priority, max_retries, deliver_at, expires_at, key, ordering_key,
    correlation_id, traceparent, ordinal
)
where (b.target is null or exists (select from public.services s where s.name = b.target and s.removed_at is null))
  and (b.key is null or b.id in (select event_id from keyed))
order by b.ordinal
returning id, status, created_at,
          case when :notification::text is not null and pg_notification_queue_usage() < 0.5
              then pg_notify(:notify_channel, :notification::text) end::text is not null as is_notified;

-- name: find_skipped_drafts
-- Why drafts were skipped: the first event with their key, and whether its content is the same. The payload of a draft without
-- a target was never parsed and is not parsed here: it could fail after the commit of the recorded events.
select b.id as draft_id, e.id, e.status, e.created_at,
       case when e.id is not null and t.target_exists then k.content_hash is not distinct from pabal.content_hash(
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
    select b.target is null
           or exists (select from public.services s where s.name = b.target and s.removed_at is null) as target_exists
) t
left join pabal.event_keys k on k.source_service = b.source and k.idempotency_key = b.key
left join public.event_queue e on e.id = k.event_id;

-- name: expire_idempotency_keys
-- By ctid: the table is narrow and not partitioned. A key that a publisher replaces at this moment is skipped.
delete from pabal.event_keys
where ctid = any(array(
    select k.ctid
    from pabal.event_keys k
    where k.created_at <= pabal.event_key_cutoff()
    order by k.created_at
    limit :batch
    for update skip locked
));
