-- name: find_event_claims
-- Of these receipts those that are the service's own and still hold; somebody else's is as stale as a lost one.
select e.id, e.lease, e.retry_count, e.max_retries
from unnest(:ids::uuid[], :leases::uuid[]) as r (id, lease)
join public.event_queue e on e.id = r.id and e.lease = r.lease
where e.target_service = :service;
