-- name: lock_service
-- Serialises additions for one service, so that the count stays exact. `no key` does not block inserts of rows that refer to the
-- service.
select name from public.services where name = :service and removed_at is null for no key update;

-- name: find_subscriber_rights
select may_subscribe, receives_hub_events from public.services where name = :service;

-- name: count_subscriptions
select count(*) from pabal.subscriptions where service_name = :service;

-- name: insert_subscription
insert into pabal.subscriptions (
    id, service_name, mode, event_types, description, url, secret, timeout_seconds, retry_schedule, on_blocked
) values (
    :id, :service, :mode, :event_types, :description, :url, :secret, :timeout_seconds, :retry_schedule, :on_blocked
)
returning id, service_name, mode, program, event_types, description, url, timeout_seconds, retry_schedule, on_blocked, paused_at, disabled_at, disabled_reason,
          failures, open_until, previous_secret_until, created_at, updated_at;

-- name: find_subscription
-- Not found if it belongs to another service.
select id, service_name, mode, program, event_types, description, url, timeout_seconds, retry_schedule, on_blocked, paused_at, disabled_at, disabled_reason,
       failures, open_until, previous_secret_until, created_at, updated_at
from pabal.subscriptions
where id = :id and (:all::boolean or service_name = :service);

-- name: lock_subscription
select id, service_name, mode, program, event_types, description, url, timeout_seconds, retry_schedule, on_blocked, paused_at, disabled_at, disabled_reason,
       failures, open_until, previous_secret_until, created_at, updated_at
from pabal.subscriptions
where id = :id and (:all::boolean or service_name = :service)
for no key update;

-- name: list_subscriptions
-- The oldest first, the order in which a push selects the subscription of an event.
select id, service_name, mode, program, event_types, description, url, timeout_seconds, retry_schedule, on_blocked, paused_at, disabled_at, disabled_reason,
       failures, open_until, previous_secret_until, created_at, updated_at
from pabal.subscriptions
where (:all::boolean or service_name = :service)
  and (:of::text is null or service_name = :of)
  and (:after::timestamptz is null or (created_at, id) > (:after, :after_id::uuid))
order by created_at, id
limit :limit;

-- name: update_subscription
-- A new URL is a new receiver: the failures of the old one do not count.
update pabal.subscriptions
set event_types     = coalesce(:event_types::text[], event_types),
    url             = coalesce(:url::text, url),
    timeout_seconds = coalesce(:timeout_seconds::integer, timeout_seconds),
    retry_schedule  = case when :set_retry_schedule::boolean then :retry_schedule::integer[] else retry_schedule end,
    on_blocked      = coalesce(:on_blocked::text, on_blocked),
    description     = case when :set_description::boolean then :description else description end,
    failures        = case when coalesce(:url <> url, false) then 0 else failures end,
    open_until      = case when coalesce(:url <> url, false) then null else open_until end
where id = :id and service_name = :service
returning id, service_name, mode, program, event_types, description, url, timeout_seconds, retry_schedule, on_blocked, paused_at, disabled_at, disabled_reason,
          failures, open_until, previous_secret_until, created_at, updated_at;

-- name: pause_subscription
update pabal.subscriptions
set paused_at = pabal.now()
where id = :id and service_name = :service
returning id, service_name, mode, program, event_types, description, url, timeout_seconds, retry_schedule, on_blocked, paused_at, disabled_at, disabled_reason,
          failures, open_until, previous_secret_until, created_at, updated_at;

-- name: resume_subscription
update pabal.subscriptions
set paused_at = null, disabled_at = null, disabled_reason = null, failures = 0, open_until = null
where id = :id and service_name = :service
returning id, service_name, mode, program, event_types, description, url, timeout_seconds, retry_schedule, on_blocked, paused_at, disabled_at, disabled_reason,
          failures, open_until, previous_secret_until, created_at, updated_at;

-- name: disable_subscription
-- Changes nothing if it is disabled already, or if the URL changed meanwhile.
update pabal.subscriptions
set disabled_at = pabal.now(), disabled_reason = :reason
where id = :id and service_name = :service and url = :url and disabled_at is null;

-- name: find_secret
select secret from pabal.subscriptions where id = :id and service_name = :service;

-- name: rotate_secret
update pabal.subscriptions
set secret = :secret, previous_secret = :previous,
    previous_secret_until = case when :previous::text is not null then pabal.now() + :overlap::interval end
where id = :id and service_name = :service
returning id, service_name, mode, program, event_types, description, url, timeout_seconds, retry_schedule, on_blocked, paused_at, disabled_at, disabled_reason,
          failures, open_until, previous_secret_until, created_at, updated_at;

-- name: delete_subscription
delete from pabal.subscriptions where id = :id and service_name = :service;
