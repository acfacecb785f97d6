-- name: lock_breaker
-- Not found if the URL changed meanwhile: the result of the old receiver does not count for the new one.
select failures, open_until, pabal.now() as now
from pabal.subscriptions
where id = :id and service_name = :service and url = :url
for no key update;

-- name: update_breaker
update pabal.subscriptions
set failures = :failures, open_until = :open_until
where id = :id and service_name = :service;

-- name: release_probe
-- For a probe that was never sent: the next one is due now. The failures stay.
update pabal.subscriptions
set open_until = pabal.now()
where id = :id and service_name = :service and url = :url and open_until > pabal.now();
