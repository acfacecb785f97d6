-- name: conflict_service_names
-- Service names are lower case letters, digits and underscores.
select count(*), min(s.name)
from existing.event_queue e
cross join lateral (values (e.source_service), (e.target_service)) as s (name)
where s.name !~ '^[a-z][a-z0-9_]{1,62}$';

-- name: conflict_event_types
-- Event types are parts of lower case letters, digits and underscores, separated by dots, with at most 128 characters.
select count(*), min(e.event_type)
from existing.event_queue e
where e.event_type !~ '^[a-z0-9_]+(\.[a-z0-9_]+)*$' or length(e.event_type) > 128;

-- name: conflict_payloads
-- The payload of an event is a JSON object.
select count(*), min(e.id::text) from existing.event_queue e where jsonb_typeof(e.payload) <> 'object';

-- name: rule_unknown_services
-- Services of events that Pabal does not know are registered, with permission to read.
select count(distinct s.name)
from existing.event_queue e
cross join lateral (values (e.source_service), (e.target_service)) as s (name)
where s.name not in ('hub', 'minu_find', 'minu_frame', 'minu_build', 'minu_keep');

-- name: rule_processing
-- Events in processing have no lease: they are due again PABAL_PLAIN_CLAIM_LIFE after processing_started_at, or after updated_at if that is missing.
select count(*) from existing.event_queue e where e.status = 'processing' and e.target_service is not null;

-- name: rule_open_broadcasts
-- Open broadcasts are delivered once to every active service except their publisher and the hub, and are then completed.
select count(*) from existing.event_queue e where e.status in ('pending', 'processing') and e.target_service is null;

-- name: rule_end_times
-- Ended events without processed_at get updated_at; open ones with it lose it.
select count(*)
from existing.event_queue e
where (e.status in ('completed', 'failed', 'cancelled')) <> (e.processed_at is not null)
  and (e.target_service is not null or e.status not in ('pending', 'processing'));

-- name: rule_missing_letters
-- Failed events without a dead letter get one.
select count(*)
from existing.event_queue e
where e.status = 'failed' and not exists (select from existing.dead_letter_queue d where d.event_id = e.id);

-- name: rule_repeated_letters
-- Of several open dead letters for one failure (same event, error, retries and history), the first stays open; the others are resolved with a note.
select count(*)
from (
  select d.resolved_at, row_number() over failure as position
  from existing.dead_letter_queue d
  where d.event_id is not null
  window failure as (
    partition by d.event_id, d.error_message, d.total_retry_count, d.error_history order by d.resolved_at nulls last, d.failed_at, d.id
  )
) d
where d.position > 1 and d.resolved_at is null;

-- name: copy_services
insert into public.services (name, description)
select distinct s.name, 'Adopted'
from existing.event_queue e
cross join lateral (values (e.source_service), (e.target_service)) as s (name)
where s.name is not null and not exists (select from public.services k where k.name = s.name);

-- name: copy_check_at_once
-- A table with deferred checks cannot be altered.
set constraints all immediate;

-- name: copy_hold_letters
-- Failed events have their dead letters already.
alter table public.event_queue disable trigger event_queue_insert_failed_trigger;

-- name: copy_events
-- In the order of creation: seq follows it.
insert into public.event_queue (
  id, event_type, source_service, target_service, payload, status, retry_count, max_retries, next_retry_at, processed_at,
  processing_started_at, processor_id, last_error, error_history, priority, created_at, updated_at
)
select e.id, e.event_type, e.source_service, e.target_service, e.payload,
       case when e.status = 'processing' and e.target_service is null then 'pending' else e.status end,
       e.retry_count, e.max_retries, e.next_retry_at,
       case when e.status in ('completed', 'failed', 'cancelled') then coalesce(e.processed_at, e.updated_at) end,
       case when e.status = 'processing' then coalesce(e.processing_started_at, e.updated_at) else e.processing_started_at end,
       e.processor_id, e.last_error, e.error_history, e.priority, e.created_at, e.updated_at
from existing.event_queue e
where e.status <> 'failed' or exists (select from existing.dead_letter_queue d where d.event_id = e.id)
order by e.created_at, e.id;

-- name: copy_release_letters
alter table public.event_queue enable trigger event_queue_insert_failed_trigger;

-- name: copy_failed_events
-- Those without a dead letter: the trigger writes it.
insert into public.event_queue (
  id, event_type, source_service, target_service, payload, status, retry_count, max_retries, next_retry_at, processed_at,
  processing_started_at, processor_id, last_error, error_history, priority, created_at, updated_at
)
select e.id, e.event_type, e.source_service, e.target_service, e.payload, e.status, e.retry_count, e.max_retries,
       e.next_retry_at, coalesce(e.processed_at, e.updated_at), e.processing_started_at, e.processor_id, e.last_error,
       e.error_history, e.priority, e.created_at, e.updated_at
from existing.event_queue e
where e.status = 'failed' and not exists (select from existing.dead_letter_queue d where d.event_id = e.id)
order by e.created_at, e.id;

-- name: copy_plain_claims
insert into pabal.plain_claims (id)
select e.id from public.event_queue e where e.status = 'processing' and e.lease is null and e.target_service is not null
on conflict do nothing;

-- name: copy_broadcasts
-- Nothing subscribes yet, so the trigger has made no deliveries.
insert into public.event_queue (
  id, event_type, source_service, target_service, payload, max_retries, next_retry_at, priority, parent_id, correlation_id
)
select pabal.uuid7(), e.event_type, e.source_service, s.name, e.payload, e.max_retries, e.next_retry_at, e.priority, e.id, e.id::text
from existing.event_queue e
join public.services s on s.is_active and s.name not in (e.source_service, 'hub')
where e.status in ('pending', 'processing') and e.target_service is null
  and not exists (select from public.event_queue d where d.parent_id = e.id)
order by e.created_at, e.id, s.name;

-- name: copy_dead_letters
insert into public.dead_letter_queue (
  id, event_id, original_event_type, original_source_service, original_target_service, original_payload, error_message,
  error_code, error_stack, total_retry_count, error_history, resolved_at, resolved_by, resolution_notes, failed_at, created_at,
  original_event_id, origin_id, original_envelope, death, resolved_by_actor
)
select d.id, d.event_id, d.original_event_type, d.original_source_service, d.original_target_service, d.original_payload,
       d.error_message, d.error_code, d.error_stack, d.total_retry_count, d.error_history,
       case when d.is_repeat then pabal.now() else d.resolved_at end, d.resolved_by,
       case when d.is_repeat then concat_ws(E'\n', d.resolution_notes, 'Repeats the dead letter ' || d.first_id || ' of the same failure.')
            else d.resolution_notes end,
       d.failed_at, d.created_at, coalesce(d.event_id, d.id), coalesce(d.event_id, d.id),
       jsonb_strip_nulls(jsonb_build_object('priority', e.priority, 'max_retries', e.max_retries)),
       row_number() over (partition by coalesce(d.event_id, d.id) order by d.failed_at, d.id),
       case when d.is_repeat then 'adopted' end
from (
  select l.*, first_value(l.id) over failure as first_id,
         l.event_id is not null and l.resolved_at is null and row_number() over failure > 1 as is_repeat
  from existing.dead_letter_queue l
  window failure as (
    partition by l.event_id, l.error_message, l.total_retry_count, l.error_history order by l.resolved_at nulls last, l.failed_at, l.id
  )
) d
left join existing.event_queue e on e.id = d.event_id;
