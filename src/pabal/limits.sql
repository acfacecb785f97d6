-- name: consume
-- GCRA in one upsert. `tat` is the theoretical arrival time, when no call counts any more; it moves only if the call
-- fits. A returned row means yes. The row lock serialises concurrent calls.
insert into pabal.limits as l (key, tat)
values (:key, pabal.now() + :step::interval)
on conflict (key) do update
set tat = greatest(l.tat, pabal.now()) + :step::interval
where greatest(l.tat, pabal.now()) + :step::interval <= pabal.now() + :window::interval
returning true;

-- name: retry_after
-- A separate statement after a refusal: in `consume`, the row may be newer than the statement's snapshot.
select greatest(l.tat + :step::interval - pabal.now() - :window::interval, interval '0')
from pabal.limits l
where l.key = :key;

-- name: read_states
-- Counts no call. Without a row, no call is counted.
select greatest(l.tat + c.step - pabal.now() - c.window_length, interval '0') as retry_after, coalesce(l.tat > pabal.now(), false) as is_used
from unnest(:keys::text[], :steps::interval[], :windows::interval[]) with ordinality as c (key, step, window_length, position)
left join pabal.limits l on l.key = c.key
order by c.position;

-- name: block
insert into pabal.limits as l (key, tat)
values (:key, pabal.now() + :duration::interval)
on conflict (key) do update
set tat = greatest(l.tat, excluded.tat);

-- name: blocked_for
select coalesce(greatest(max(l.tat) - pabal.now(), interval '0'), interval '0')
from pabal.limits l
where l.key = any(:keys::text[]);

-- name: reserve
-- Like `consume`, but the slot may be in the future. It belongs to this caller alone.
insert into pabal.limits as l (key, tat)
values (:key, pabal.now() + :step::interval)
on conflict (key) do update
set tat = greatest(l.tat, pabal.now()) + :step::interval
where greatest(l.tat, pabal.now()) + :step::interval <= pabal.now() + :window::interval + :max_wait::interval
returning greatest(l.tat - pabal.now() - :window::interval, interval '0');

-- name: reserve_many
-- Like `reserve` without a limit of the wait, for several keys and any number of slots. Ordered by key, so that two
-- transactions cannot deadlock. pabal.now() is the same in the whole transaction, so the difference is the duration.
insert into pabal.limits as l (key, tat)
select c.key, pabal.now() + c.duration
from unnest(:keys::text[], :durations::interval[]) as c (key, duration)
order by c.key
on conflict (key) do update
set tat = greatest(l.tat, pabal.now()) + (excluded.tat - pabal.now())
returning l.key, l.tat - pabal.now() as used;

-- name: refund_many
-- The transaction holds these rows since `reserve_many`.
update pabal.limits l
set tat = l.tat - c.duration
from unnest(:keys::text[], :durations::interval[]) as c (key, duration)
where l.key = c.key;

-- name: purge
-- A row whose `tat` has passed has no effect; for a minute it still tells that the limit was used. Locked rows are in use.
delete from pabal.limits
where key in (
    select key from pabal.limits where tat < pabal.now() - interval '1 minute' limit :batch for update skip locked
);
