-- name: consume
-- GCRA in one upsert: `tat` is when the row would be empty again, and it moves only if the call fits. That a row comes
-- back is the whole answer: the row lock decides, so no two calls take the same place. The key names whose limit it is.
insert into pabal.limits as l (key, tat)
values (:key, pabal.now() + :step::interval)
on conflict (key) do update
set tat = greatest(l.tat, pabal.now()) + :step::interval
where greatest(l.tat, pabal.now()) + :step::interval <= pabal.now() + :span::interval
returning true;

-- name: retry_after
-- Asked after a refusal, by itself: inside `take` the row that refused may be newer than the statement's snapshot.
select greatest(l.tat + :step::interval - pabal.now() - :span::interval, interval '0')
from pabal.limits l
where l.key = :key;

-- name: read_states
-- A look is not a call. Who has no row has called nobody.
select greatest(l.tat + c.step - pabal.now() - c.span, interval '0') as retry_after, coalesce(l.tat > pabal.now(), false) as is_used
from unnest(:keys::text[], :steps::interval[], :spans::interval[]) with ordinality as c (key, step, span, position)
left join pabal.limits l on l.key = c.key
order by c.position;

-- name: block
insert into pabal.limits as l (key, tat)
values (:key, pabal.now() + :span::interval)
on conflict (key) do update
set tat = greatest(l.tat, excluded.tat);

-- name: blocked_for
select coalesce(greatest(max(l.tat) - pabal.now(), interval '0'), interval '0')
from pabal.limits l
where l.key = any(:keys::text[]);

-- name: reserve
-- As `take`, but the place may lie ahead: it is the caller's from now on, and nobody else waits for the same one.
insert into pabal.limits as l (key, tat)
values (:key, pabal.now() + :step::interval)
on conflict (key) do update
set tat = greatest(l.tat, pabal.now()) + :step::interval
where greatest(l.tat, pabal.now()) + :step::interval <= pabal.now() + :span::interval + :within::interval
returning greatest(l.tat - pabal.now() - :span::interval, interval '0');

-- name: purge
-- A row whose time has passed says nothing any more. One that somebody is counting against this moment does.
delete from pabal.limits
where key in (select key from pabal.limits where tat < pabal.now() limit :batch for update skip locked);
