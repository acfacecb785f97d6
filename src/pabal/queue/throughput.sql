-- name: add_counts
-- Rows are locked in lane order, so that two processes cannot deadlock.
insert into pabal.throughput as p (minute, lane, done, failed, dead)
select date_trunc('minute', pabal.now()), c.lane, c.done, c.failed, c.dead
from unnest(:lanes::text[], :done::bigint[], :failed::bigint[], :dead::bigint[]) as c (lane, done, failed, dead)
order by c.lane
on conflict (minute, lane) do update
set done = p.done + excluded.done, failed = p.failed + excluded.failed, dead = p.dead + excluded.dead;

-- name: last_hour
-- Sixty minutes per lane, current one last, including minutes without a row.
select l.lane, m.minute, coalesce(p.done, 0) as done, coalesce(p.failed, 0) as failed, coalesce(p.dead, 0) as dead,
       least(pabal.now() - m.minute, interval '1 minute') as elapsed
from unnest(:lanes::text[]) as l (lane)
cross join generate_series(
    date_trunc('minute', pabal.now()) - interval '59 minutes', date_trunc('minute', pabal.now()), interval '1 minute'
) as m (minute)
left join pabal.throughput p on p.minute = m.minute and p.lane = l.lane
order by l.lane, m.minute;

-- name: purge
delete from pabal.throughput
where (minute, lane) in (
    select minute, lane from pabal.throughput
    where minute < pabal.now() - :keep::interval
    order by minute, lane
    limit :batch
    for update skip locked
);
