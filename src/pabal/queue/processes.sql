-- name: upsert_process
-- An upsert: the process may have been purged while it could not connect, or an earlier process had the same pid.
insert into pabal.workers as w (id, host, pid, lanes, details)
values (:id, :host, :pid, :lanes, :details)
on conflict (id) do update
set host = excluded.host, pid = excluded.pid, lanes = excluded.lanes, details = excluded.details, seen_at = pabal.now(),
    started_at = case when :first::boolean then pabal.now() else w.started_at end;

-- name: delete_process
delete from pabal.workers where id = :id;

-- name: list_processes
select id, host, pid, lanes, started_at, seen_at, details, pabal.now() - seen_at as silent
from pabal.workers
order by started_at, id;

-- name: purge_processes
delete from pabal.workers
where id = any(array(
    select id from pabal.workers where seen_at < pabal.now() - :silent::interval limit :batch for update skip locked
));
