-- name: list_due
select c.name
from unnest(:names::text[], :intervals::interval[]) as c (name, interval)
left join pabal.chores k on k.name = c.name
where k.last_started_at is null or k.last_started_at + c.interval <= pabal.now();

-- name: list_runs
select c.name, c.interval, pabal.now() - k.last_started_at as started_ago, k.last_rows as rows, k.last_error as error
from unnest(:names::text[], :intervals::interval[]) with ordinality as c (name, interval, position)
left join pabal.chores k on k.name = c.name
order by c.position;

-- name: begin_run
-- The process that moves last_started_at owns this run.
insert into pabal.chores as k (name, last_started_at, runs)
values (:name, pabal.now(), 1)
on conflict (name) do update
set last_started_at = pabal.now(), runs = k.runs + 1
where k.last_started_at + :interval::interval <= pabal.now()
returning true;

-- name: lock_run
-- A run that lasts longer than its interval must not overlap with the next one. A transaction-level lock also works
-- behind a pooler.
select pg_try_advisory_xact_lock(hashtextextended('pabal chore ' || :name, 0));

-- name: finish_run
update pabal.chores
set last_finished_at = pabal.now(), last_rows = :rows, last_error = :error
where name = :name;
