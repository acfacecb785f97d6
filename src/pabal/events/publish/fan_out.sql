-- name: expand_broadcast
-- Creates the next deliveries of the broadcast that was published first: up to :limit, and as many as their payloads fit into
-- :max_bytes, but at least one. The row that says which are missing changes in the same statement, so that a crash neither loses
-- nor repeats any.
with oldest as materialized (
    select f.event_id, f.services, f.expanded,
           coalesce((select pg_column_size(e.payload) from public.event_queue e where e.id = f.event_id), 1) as bytes
    from pabal.event_fan_outs f
    order by f.seq
    limit 1
    for update skip locked
),
next as materialized (
    select o.event_id, o.services[o.expanded + 1 : o.expanded + c.count] as services, o.bytes,
           cardinality(o.services) <= o.expanded + c.count as is_last
    from oldest o
    cross join lateral (select least(:limit::integer, greatest(:max_bytes::integer / o.bytes, 1)) as count) c
),
delivered as (
    insert into public.event_queue (
        id, event_type, source_service, target_service, payload, max_retries, next_retry_at, priority,
        parent_id, ordering_key, expires_at, correlation_id, traceparent
    )
    select pabal.uuid7(), e.event_type, e.source_service, s.service, e.payload, e.max_retries, e.next_retry_at, e.priority,
           e.id, e.ordering_key, e.expires_at, coalesce(e.correlation_id, e.id::text), e.traceparent
    from next n
    join public.event_queue e on e.id = n.event_id
    cross join lateral unnest(n.services) with ordinality as s (service, position)
    order by s.position
),
advanced as (
    update pabal.event_fan_outs f set expanded = f.expanded + cardinality(n.services)
    from next n
    where f.event_id = n.event_id and not n.is_last
),
finished as (
    delete from pabal.event_fan_outs f using next n where f.event_id = n.event_id and n.is_last
)
select cardinality(n.services) as deliveries, cardinality(n.services)::bigint * n.bytes as bytes from next n;

-- name: delete_fan_out
-- Waits for a slice that is being created.
delete from pabal.event_fan_outs where event_id = :id;
