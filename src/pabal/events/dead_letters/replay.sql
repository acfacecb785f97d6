-- name: count_replayable_dead_letters
-- Dead letters that fail after `at` do not count.
select count(*), pabal.now() as at
from public.dead_letter_queue d
where d.resolved_at is null
  and (:event_type::text is null or d.original_event_type like :event_type)
  and (:source::text is null or d.original_source_service = :source)
  and (:target::text is null or d.original_target_service = :target)
  and (:signature::text is null or d.signature = :signature)
  and (:error_code::text is null or d.error_code = :error_code)
  and (:since::timestamptz is null or d.failed_at >= :since)
  and (:until::timestamptz is null or d.failed_at < :until);

-- name: list_next_dead_letters
-- The oldest first, so that events are queued in the order in which they failed.
select d.id, d.failed_at
from public.dead_letter_queue d
where d.resolved_at is null
  and (:event_type::text is null or d.original_event_type like :event_type)
  and (:source::text is null or d.original_source_service = :source)
  and (:target::text is null or d.original_target_service = :target)
  and (:signature::text is null or d.signature = :signature)
  and (:error_code::text is null or d.error_code = :error_code)
  and (:since::timestamptz is null or d.failed_at >= :since)
  and (:until::timestamptz is null or d.failed_at < :until)
  and (d.failed_at, d.id) > (
      coalesce(:after::timestamptz, '-infinity'), coalesce(:after_id::uuid, '00000000-0000-0000-0000-000000000000')
  )
order by d.failed_at, d.id
limit :limit;

-- name: lock_events
-- Locks events before dead letters, each by id, in the order in which a deletion of events locks them.
select e.id
from public.event_queue e
where e.id = any(array(
    select d.original_event_id from public.dead_letter_queue d where d.id = any(:ids::uuid[]) and d.resolved_at is null
))
order by e.id
for no key update;

-- name: lock_dead_letters
-- Locks these dead letters and all others of the same events. lock_events has locked the events, so they do not change.
select d.id, d.original_event_id,
       d.resolved_at is not null as is_resolved, d.replayed_at is not null as is_replayed, d.resolved_by_actor,
       coalesce(e.target_service, d.original_target_service) is null as is_untargeted,
       e.status, coalesce(e.expires_at <= pabal.now(), false) as is_expired,
       exists (select from public.services s where s.name = d.original_source_service)
       and (
           d.original_target_service is null
           or exists (select from public.services s where s.name = d.original_target_service)
       ) as services_exist
from public.dead_letter_queue d
left join public.event_queue e on e.id = d.original_event_id
where d.original_event_id = any(array(select a.original_event_id from public.dead_letter_queue a where a.id = any(:ids::uuid[])))
order by d.id
for no key update of d;

-- name: recreate_events
-- Inserts deleted events under a new id, with the old one as origin. An event with a target is inserted as cancelled and then
-- queued by requeue_events: inserted as pending, it would be delivered to the rules of the hub a second time. A broadcast is
-- inserted as pending, and the triggers deliver it to its subscribers.
insert into public.event_queue (
    id, event_type, source_service, target_service, payload, status, priority, max_retries, ordering_key,
    correlation_id, traceparent, parent_id, origin_id, error_history
)
select r.id, d.original_event_type, d.original_source_service, d.original_target_service, d.original_payload,
       case when d.original_target_service is null then 'pending' else 'cancelled' end,
       coalesce((d.original_envelope ->> 'priority')::integer, 5),
       coalesce((d.original_envelope ->> 'max_retries')::integer, 3),
       d.original_envelope ->> 'ordering_key', d.original_envelope ->> 'correlation_id', d.original_envelope ->> 'traceparent',
       (select p.id from public.event_queue p where p.id = (d.original_envelope ->> 'parent_id')::uuid),
       d.origin_id, d.error_history
from unnest(:dead_letters::uuid[], :events::uuid[]) as r (dead_letter_id, id)
join public.dead_letter_queue d on d.id = r.dead_letter_id
order by d.failed_at, d.id;

-- name: requeue_events
-- Does not set a lease, so the triggers of the table make each event due, or queue it behind others of its ordering key.
update public.event_queue e
set status = 'pending', processed_at = null, retry_count = 0, processing_started_at = null, processor_id = null,
    next_retry_at = null, max_retries = coalesce(retries_from, max_retries), retries_from = null
where e.id = any(:events::uuid[]) and e.status in ('failed', 'cancelled') and e.target_service is not null;

-- name: mark_replayed
with closed as (
    update public.dead_letter_queue d
    set resolved_at = pabal.now(), resolved_by = :resolved_by, resolved_by_actor = :actor, resolution_notes = 'replayed',
        replayed_at = pabal.now(), replay_count = d.replay_count + 1
    from unnest(:dead_letters::uuid[], :events::uuid[]) as r (dead_letter_id, event)
    where d.id = r.dead_letter_id
    returning d.id, r.event
)
insert into pabal.audit_log (actor, action, subject, details, client_ip, request_id)
select :actor, 'dead_letter.replayed', c.id::text, jsonb_build_object('event', c.event), :client_ip, :request_id
from closed c
order by c.id;
