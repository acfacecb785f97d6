-- name: chain_end
-- Transaction ids lower than those of the chain mean that the database was restored on another server.
select s.digest as previous,
       coalesce(s.below, '0') as below,
       coalesce(s.floor, 0) as floor,
       coalesce(pg_snapshot_xmax(pg_current_snapshot()) < s.below, false) as is_restored,
       pabal.now() as sealed_at,
       extract(epoch from pabal.now())::text as sealed
from (values (1)) as always
left join lateral (select * from pabal.audit_seals order by id desc limit 1) s on true;

-- name: unsealed_rows
-- All transactions below a snapshot's xmin have ended and their rows are visible; the rows must be read with the same
-- snapshot, so in the same statement. With `finished`, no running transaction can have such an id. WITH TIES keeps the
-- rows of one transaction together, so that `below` describes what is sealed.
select l.id, extract(epoch from l.at)::text as at, l.actor, l.action, l.subject, l.details::text as details,
       l.client_ip::text as client_ip, l.request_id, l.xid
from pabal.audit_log l
where l.xid >= :below
  and l.xid < case when :finished then '18446744073709551615'::xid8 else pg_snapshot_xmin(pg_current_snapshot()) end
  and l.id + 0 > :floor  -- "+ 0" prevents a scan of the primary key
order by l.xid
fetch first (:batch) rows with ties;

-- name: highest_sealed_row
select max(last_id) from pabal.audit_seals;

-- name: has_renumbered_rows
select exists (select from pabal.audit_log l where l.id > :floor and l.xid < :below);

-- name: insert_seal
insert into pabal.audit_seals (first_id, last_id, count, ids, macs, below, floor, previous, key_id, sealed_at, digest)
values (:first_id, :last_id, :count, :ids, :macs, :below, :floor, :previous, :key_id, :sealed_at, :digest)
returning id;
