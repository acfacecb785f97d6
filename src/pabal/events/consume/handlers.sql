-- name: lock_handled_service
-- Against its removal. This lock does not block the foreign keys of tokens.
select name from public.services where name = :service and removed_at is null for no key update;

-- name: upsert_handler_subscription
-- One row per service and program. Writes nothing if nothing changed and seen_at is recent.
insert into pabal.subscriptions as s (service_name, mode, program, event_types, seen_at)
values (:service, 'handler', :program, :event_types, pabal.now())
on conflict (service_name, program) where mode = 'handler' do update
set event_types = excluded.event_types, disabled_at = null, disabled_reason = null, seen_at = excluded.seen_at
where s.event_types <> excluded.event_types or s.disabled_at is not null
   or s.seen_at is null or s.seen_at < pabal.now() - :seen_interval::interval;

-- name: mark_seen
update pabal.subscriptions
set seen_at = pabal.now()
where mode = 'handler' and service_name = any(:services::text[]) and program = :program
  and seen_at < pabal.now() - :seen_interval::interval;

-- name: disable_unseen_programs
-- Deliveries that are queued already stay; new broadcasts no longer queue up for a program that does not run.
update pabal.subscriptions
set disabled_at = pabal.now(), disabled_reason = 'The program did not run for ' || :days::integer || ' days'
where id = any(array(
    select s.id
    from pabal.subscriptions s
    where s.mode = 'handler' and s.disabled_at is null and s.seen_at < pabal.now() - make_interval(days => :days)
    limit :batch
    for update skip locked
));
