-- Contestants that are too slow to finish a million jobs themselves: their jobs are put, started and finished by these
-- statements, a batch at a time, each in a transaction of its own. procrastinate's triggers write its events.

-- name: procrastinate_put
insert into procrastinate_jobs (queue_name, task_name, args)
select 'default', 'job', :payload::jsonb
from generate_series(1, :batch)
returning id;

-- name: procrastinate_start
update procrastinate_jobs set status = 'doing' where id = any(:ids);

-- name: procrastinate_finish
update procrastinate_jobs set status = 'succeeded', attempts = 1 where id = any(:ids);

-- name: chancy_put
insert into chancy_jobs (id, queue, func, kwargs, state)
select gen_random_uuid(), 'default', '__main__.handle', :payload::jsonb, 'pending'
from generate_series(1, :batch)
returning id;

-- name: chancy_start
update chancy_jobs
set state = 'running', attempts = attempts + 1, taken_by = 'bench', started_at = now(), claim_id = gen_random_uuid()
where id = any(:ids);

-- name: chancy_finish
update chancy_jobs set state = 'succeeded', completed_at = now() where id = any(:ids);
