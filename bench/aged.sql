-- Finished rows, as each contestant keeps them. They are inserted with session_replication_role = replica, so without
-- triggers and foreign keys: only their presence matters. Contestants that keep no finished rows are not listed.

-- name: pabal
insert into public.event_queue (
    id, event_type, source_service, target_service, payload, status, processed_at, processing_started_at, processor_id
)
select pabal.uuid7(), 'order.paid', 'minu_find', 'minu_build', :payload::jsonb, 'completed', now(), now(), 'bench'
from generate_series(1, :rows);

-- name: pgqueuer
insert into pgqueuer_log (job_id, status, priority, entrypoint, aggregated)
select -n, 'successful', 0, 'job', true
from generate_series(1, :rows) n;

-- name: procrastinate
with ended as (
    insert into procrastinate_jobs (queue_name, task_name, args, status, attempts)
    select 'default', 'job', :payload::jsonb, 'succeeded', 1
    from generate_series(1, :rows)
    returning id
)
insert into procrastinate_events (job_id, type)
select id, t
from ended
cross join unnest('{deferred,started,succeeded}'::procrastinate_job_event_type[]) t;

-- name: chancy
insert into chancy_jobs (id, queue, func, kwargs, state, attempts, taken_by, started_at, completed_at, claim_id)
select gen_random_uuid(), 'default', '__main__.handle', :payload::jsonb, 'succeeded', 1, 'bench', now(), now(), gen_random_uuid()
from generate_series(1, :rows);

-- name: pgboss
insert into pgboss.job (name, data, state, started_on, completed_on, policy)
select 'job', :payload::jsonb, 'completed', now(), now(), 'standard'
from generate_series(1, :rows);
