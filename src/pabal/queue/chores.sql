-- name: list_due
select c.name
from unnest(:names::text[], :intervals::interval[]) as c (name, interval)
left join pabal.chores k on k.name = c.name
where k.last_started_at is null or k.last_started_at + c.interval <= pabal.now();

-- name: list_runs
select c.name, c.interval, pabal.now() - k.last_started_at as started_ago, pabal.now() - k.last_success_at as succeeded_ago,
       k.last_rows as rows, k.last_error as error
from unnest(:names::text[], :intervals::interval[]) with ordinality as c (name, interval, position)
left join pabal.chores k on k.name = c.name
order by c.position;

-- name: begin_run
-- The process that moves last_started_at owns this run.
with lock_row as (
    insert into pabal.row_locks (kind, slot) values ('chore ' || :name, 0) on conflict do nothing
)
insert into pabal.chores as k (name, every, last_started_at, runs)
values (:name, :interval::interval, pabal.now(), 1)
on conflict (name) do update
set every = excluded.every, last_started_at = pabal.now(), runs = k.runs + 1
where k.last_started_at + :interval::interval <= pabal.now()
returning true;

-- name: lock_run
-- A run that lasts longer than its interval must not overlap with the next one. Not the row in pabal.chores, which
-- begin_run and finish_run change meanwhile.
select true from pabal.row_locks where kind = 'chore ' || :name and slot = 0 for update skip locked;

-- name: record_success
-- Between the batches of a long run.
update pabal.chores set last_success_at = pabal.now() where name = :name;

-- name: list_recorded_runs
select k.name, k.every as interval, pabal.now() - k.last_started_at as started_ago,
       pabal.now() - k.last_success_at as succeeded_ago, k.last_rows as rows, k.last_error as error
from pabal.chores k
where k.every is not null
order by k.name;

-- name: delete_unknown
-- Chores of another version of the hub; a process that still has one records it again.
delete from pabal.chores where name <> all(:names::text[]);

-- name: finish_run
update pabal.chores
set last_finished_at = pabal.now(), last_rows = :rows, last_error = :error,
    last_success_at = case when :error::text is null then pabal.now() else last_success_at end
where name = :name;
