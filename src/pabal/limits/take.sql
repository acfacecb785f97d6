-- name: take
-- GCRA in one upsert: `tat` is when the row would be empty again. The row moves only if the call fits; if it does not,
-- the second branch says when it would. Keys are never read without their tenant: the tenant is in the key.
with took as (
    insert into pabal.limits as l (key, tat)
    values (:key, pabal.now() + :step::interval)
    on conflict (key) do update
    set tat = greatest(l.tat, pabal.now()) + :step::interval
    where greatest(l.tat, pabal.now()) + :step::interval <= pabal.now() + :span::interval
    returning tat
)
select interval '0' as wait from took
union all
select greatest(l.tat, pabal.now()) + :step::interval - pabal.now() - :span::interval
from pabal.limits l
where l.key = :key and not exists (select from took);

-- name: forget
-- A row whose time has passed says nothing any more.
delete from pabal.limits
where key in (select key from pabal.limits where tat < pabal.now() limit :batch);
