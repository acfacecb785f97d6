-- name: count_deliveries
-- At most :max_count deliveries of each broadcast are read. Only the publisher and operators see how many services a broadcast
-- that is being expanded will reach.
select b.id as event_id, d.count + coalesce(f.missing, 0) as deliveries, d.count as created, d.done, d.dead, d.cancelled
from public.event_queue b
cross join lateral (
    select count(*), count(*) filter (where d.status = 'completed') as done, count(*) filter (where d.status = 'failed') as dead,
           count(*) filter (where d.status = 'cancelled') as cancelled
    from (
        select d.status
        from public.event_queue d
        where d.parent_id = b.id and (:all::boolean or d.source_service = :service or d.target_service = :service)
        limit :max_count
    ) d
) d
left join lateral (
    select cardinality(f.services) - f.expanded as missing
    from pabal.event_fan_outs f
    where f.event_id = b.id and (:all::boolean or b.source_service = :service)
) f on true
where b.id = any(:ids::uuid[]) and b.is_broadcast;
