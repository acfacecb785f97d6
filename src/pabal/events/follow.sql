-- name: list_new_events
-- In the order of created_at, which has an index. created_at is when the publishing transaction began, which may be long
-- before its commit, so a follower reads back a little and skips the events it has seen.
select e.id, e.event_type, e.source_service, e.target_service, e.status, e.retry_count, e.created_at, e.processed_at,
       e.last_error, e.parent_id, e.is_broadcast
from public.event_queue e
where (e.created_at, e.id) > (:after::timestamptz, :after_id::uuid)
  and (:event_type::text is null or e.event_type like :event_type)
  and (:service::text is null or e.source_service = :service or e.target_service = :service)
order by e.created_at, e.id
limit :limit;

-- name: list_unfinished_event_ids
-- At most :limit due and :limit claimed events.
(
    select e.id
    from (select d.id from pabal.event_due d limit :limit) d
    join public.event_queue e on e.id = d.id
    where (:event_type::text is null or e.event_type like :event_type)
      and (:service::text is null or e.source_service = :service or e.target_service = :service)
)
union all
(
    select e.id
    from pabal.event_leases l
    cross join unnest(l.ids) i
    join public.event_queue e on e.id = i and e.lease = l.id
    where (:event_type::text is null or e.event_type like :event_type)
      and (:service::text is null or e.source_service = :service or e.target_service = :service)
    limit :limit
);

-- name: list_followed_events
select e.id, e.event_type, e.source_service, e.target_service, e.status, e.retry_count, e.created_at, e.processed_at,
       e.last_error, e.parent_id, e.is_broadcast
from public.event_queue e
where e.id = any(:ids::uuid[])
order by e.processed_at;

-- name: list_long_transactions
-- Transactions that may still commit events with an old created_at, as times of pabal.now(), which tests can move.
select t.at + (pabal.now() - now()) as began
from unnest(pabal.long_transactions(:min_age::interval)) as t (at)
where t.at > now() - :max_age::interval;

-- name: database_now
select pabal.now();
