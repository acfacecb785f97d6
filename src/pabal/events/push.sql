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
