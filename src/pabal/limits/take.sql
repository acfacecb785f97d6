-- name: take
-- GCRA in one upsert: `tat` is when the row would be empty again, and it moves only if the call fits. That a row comes
-- back is the whole answer: the row lock decides, so no two calls take the same place. The key names whose limit it is.
insert into pabal.limits as l (key, tat)
values (:key, pabal.now() + :step::interval)
on conflict (key) do update
set tat = greatest(l.tat, pabal.now()) + :step::interval
where greatest(l.tat, pabal.now()) + :step::interval <= pabal.now() + :span::interval
returning true;

-- name: wait
-- Asked after a refusal, by itself: inside `take` the row that refused may be newer than the statement's snapshot.
select greatest(l.tat + :step::interval - pabal.now() - :span::interval, interval '0')
from pabal.limits l
where l.key = :key;

-- name: forget
-- A row whose time has passed says nothing any more.
delete from pabal.limits
where key in (select key from pabal.limits where tat < pabal.now() limit :batch);
