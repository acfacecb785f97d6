-- name: end_blocking_events
-- Retries that began more than :blocked ago, wait for their next attempt and hold back later events of their ordering key, if the
-- subscription that gets them, the oldest active one, has on_blocked = 'dead_letter'. The plain update fires the trigger that
-- writes the dead letter. Of more attempts than the history keeps, the newest entry names the first one.
with blocking as materialized (
    select e.id
    from pabal.event_due d
    join public.event_queue e on e.id = d.id and e.status = 'pending'
    where d.is_retry and d.ordering_key is not null and d.due_at > pabal.now()
      and coalesce(
          e.error_history -> (-1 - e.retry_count) ->> 'began',
          e.error_history -> -1 ->> 'first_began',
          e.error_history -> 0 ->> 'began'
      )::timestamptz <= pabal.now() - :blocked::interval
      and exists (
          select from pabal.event_order l
          where l.service = d.service and l.ordering_key = d.ordering_key and l.seq > d.seq
      )
      and (
          select s.on_blocked
          from pabal.subscriptions s
          where s.service_name = d.service and s.mode = 'push' and s.paused_at is null and s.disabled_at is null
            and d.event_type like any (s.patterns)
          order by s.created_at, s.id
          limit 1
      ) = 'dead_letter'
    order by e.id
    limit :batch
    for no key update of e skip locked
)
update public.event_queue e
set status = 'failed', processed_at = pabal.now(), error_code = 'blocked_key',
    last_error = left(coalesce(e.last_error, 'failed'), 4000) || '; it held back later events of its ordering key',
    updated_at = pabal.now()
from blocking b
where e.id = b.id;
