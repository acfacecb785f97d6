-- name: find_event_claims
-- A receipt of another service counts as lost.
select e.id, e.lease, e.target_service, e.retry_count, e.max_retries
from unnest(:ids::uuid[], :leases::uuid[]) as r (id, lease)
join public.event_queue e on e.id = r.id and e.lease = r.lease
where e.target_service = :service;
