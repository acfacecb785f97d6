-- name: list_due
-- Which of these have not begun within their time; one look a second for all of them.
select c.name
from unnest(:names::text[], :everies::interval[]) as c (name, every)
left join pabal.chores k on k.name = c.name
where k.last_started_at is null or k.last_started_at + c.every <= pabal.now();

-- name: list_runs
select c.name, c.interval, pabal.now() - k.last_started_at as started_ago, k.last_rows as rows, k.last_error as error
from unnest(:names::text[], :everies::interval[]) with ordinality as c (name, interval, position)
left join pabal.chores k on k.name = c.name
order by c.position;

-- name: begin_run
-- Whoever moves the time has the chore for this round, whichever process it is.
insert into pabal.chores as k (name, last_started_at, runs)
values (:name, pabal.now(), 1)
on conflict (name) do update
set last_started_at = pabal.now(), runs = k.runs + 1
where k.last_started_at + :every::interval <= pabal.now()
returning true;

-- name: lock_run
-- A round that lasts longer than its time must not meet the next one. The lock lives as long as the transaction, which a
-- pooler understands too.
select pg_try_advisory_xact_lock(hashtextextended('pabal chore ' || :name, 0));

-- name: finish_run
update pabal.chores
set last_finished_at = pabal.now(), last_rows = :rows, last_error = :error
where name = :name;
