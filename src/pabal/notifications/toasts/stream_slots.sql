-- name: take_slot
-- A free slot at random: openings at once rarely choose the same one. If they do, one of them takes it, and the others get no
-- slot although some are free.
with free as materialized (
    select f.slot
    from generate_series(1, :slots) as f (slot)
    where not exists (
        select from notification.toast_streams s
        where s.recipient = :recipient and s.slot = f.slot and s.alive_until > pabal.now()
    )
),
taken as (
    insert into notification.toast_streams as s (recipient, slot, id, alive_until)
    select :recipient, f.slot, :id::uuid, pabal.now() + :life::interval from free f order by random() limit 1
    on conflict (recipient, slot) do update set id = excluded.id, alive_until = excluded.alive_until
    where s.alive_until <= pabal.now()
    returning s.slot
)
select (select t.slot from taken t) as slot, exists (select from free) as is_any_free;

-- name: extend_slots
-- Also adds a slot that was purged while its process could not reach the database. One that another stream took meanwhile is
-- left to it.
insert into notification.toast_streams as s (recipient, slot, id, alive_until)
select o.recipient, o.slot, o.id, pabal.now() + :life::interval
from unnest(:recipients::text[], :slots::integer[], :ids::uuid[]) as o (recipient, slot, id)
order by o.recipient, o.slot
on conflict (recipient, slot) do update set alive_until = excluded.alive_until
where s.id = excluded.id;

-- name: release_slots
delete from notification.toast_streams s
using unnest(:recipients::text[], :slots::integer[], :ids::uuid[]) as o (recipient, slot, id)
where s.recipient = o.recipient and s.slot = o.slot and s.id = o.id;

-- name: purge_slots
-- For all people: slots of processes that are gone.
delete from notification.toast_streams
where (recipient, slot) in (
    select recipient, slot from notification.toast_streams
    where alive_until < pabal.now() - interval '1 minute'
    limit :batch
    for update skip locked
);
