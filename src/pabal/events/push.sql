-- name: lock_breaker
-- Of the receiver that was tried: one who has another address by now begins anew.
select failures, open_until, pabal.now() as now
from pabal.subscriptions
where id = :id and service_name = :service and url = :url
for no key update;

-- name: update_breaker
update pabal.subscriptions
set failures = :failures, open_until = :open_until
where id = :id and service_name = :service;
