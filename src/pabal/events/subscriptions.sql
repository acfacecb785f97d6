-- name: lock_service
-- Those who add for one service come one after the other, so that the count they see is true. Events refer to the service
-- all the time; this lock does not hold them up.
select name from public.services where name = :service for no key update;

-- name: count_subscriptions
select count(*) from pabal.subscriptions where service_name = :service;

-- name: insert_subscription
insert into pabal.subscriptions (id, service_name, mode, event_types, description, url, secret, timeout_seconds)
values (:id, :service, :mode, :event_types, :description, :url, :secret, :timeout_seconds)
returning id, service_name, mode, program, event_types, description, url, timeout_seconds, paused_at, disabled_at, disabled_reason,
          failures, open_until, previous_secret_until, created_at, updated_at;

-- name: find_subscription
-- Somebody else's is not there.
select id, service_name, mode, program, event_types, description, url, timeout_seconds, paused_at, disabled_at, disabled_reason,
       failures, open_until, previous_secret_until, created_at, updated_at
from pabal.subscriptions
where id = :id and (:all::boolean or service_name = :service);

-- name: lock_subscription
-- The same for whoever is about to change it.
select id, service_name, mode, program, event_types, description, url, timeout_seconds, paused_at, disabled_at, disabled_reason,
       failures, open_until, previous_secret_until, created_at, updated_at
from pabal.subscriptions
where id = :id and (:all::boolean or service_name = :service)
for no key update;

-- name: list_subscriptions
-- The oldest first: in this order a push looks for the one an event goes to.
select id, service_name, mode, program, event_types, description, url, timeout_seconds, paused_at, disabled_at, disabled_reason,
       failures, open_until, previous_secret_until, created_at, updated_at
from pabal.subscriptions
where (:all::boolean or service_name = :service)
  and (:of::text is null or service_name = :of)
  and (:after::timestamptz is null or (created_at, id) > (:after, :after_id::uuid))
order by created_at, id
limit :limit;

-- name: update_subscription
-- Another address is another receiver: what the one before did does not count against it.
update pabal.subscriptions
set event_types     = coalesce(:event_types::text[], event_types),
    url             = coalesce(:url::text, url),
    timeout_seconds = coalesce(:timeout_seconds::integer, timeout_seconds),
    description     = case when :describe::boolean then :description else description end,
    failures        = case when coalesce(:url <> url, false) then 0 else failures end,
    open_until      = case when coalesce(:url <> url, false) then null else open_until end
where id = :id and service_name = :service
returning id, service_name, mode, program, event_types, description, url, timeout_seconds, paused_at, disabled_at, disabled_reason,
          failures, open_until, previous_secret_until, created_at, updated_at;

-- name: pause_subscription
update pabal.subscriptions
set paused_at = pabal.now()
where id = :id and service_name = :service
returning id, service_name, mode, program, event_types, description, url, timeout_seconds, paused_at, disabled_at, disabled_reason,
          failures, open_until, previous_secret_until, created_at, updated_at;

-- name: resume_subscription
update pabal.subscriptions
set paused_at = null, disabled_at = null, disabled_reason = null, failures = 0, open_until = null
where id = :id and service_name = :service
returning id, service_name, mode, program, event_types, description, url, timeout_seconds, paused_at, disabled_at, disabled_reason,
          failures, open_until, previous_secret_until, created_at, updated_at;

-- name: disable_subscription
-- Whoever comes second changes nothing, and neither does the answer of an address it no longer has.
update pabal.subscriptions
set disabled_at = pabal.now(), disabled_reason = :why
where id = :id and service_name = :service and url = :url and disabled_at is null;

-- name: find_secret
select secret from pabal.subscriptions where id = :id and service_name = :service;

-- name: rotate_secret
update pabal.subscriptions
set secret = :secret, previous_secret = :previous,
    previous_secret_until = case when :previous::text is not null then pabal.now() + :overlap::interval end
where id = :id and service_name = :service
returning id, service_name, mode, program, event_types, description, url, timeout_seconds, paused_at, disabled_at, disabled_reason,
          failures, open_until, previous_secret_until, created_at, updated_at;

-- name: delete_subscription
delete from pabal.subscriptions where id = :id and service_name = :service;
