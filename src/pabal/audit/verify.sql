-- name: server_counters
select pg_snapshot_xmax(pg_current_snapshot()) as next_xid,
       (select case when is_called then last_value else 0 end from pabal.audit_seals_id_seq) as seals;

-- name: list_seals
select s.id, s.previous, s.first_id, s.last_id, s.count, s.ids, s.macs, s.below, s.floor, s.key_id, s.digest,
       extract(epoch from s.sealed_at)::text as sealed
from pabal.audit_seals s
where s.id > :after
order by s.id
limit :limit;

-- name: list_rows
select l.id, extract(epoch from l.at)::text as at, l.actor, l.action, l.subject, l.details::text as details,
       l.client_ip::text as client_ip, l.request_id, l.xid
from pabal.audit_log l
where l.id = any(:ids::bigint[]);

-- name: list_row_ids
select l.id, l.xid
from pabal.audit_log l
where l.id > :after
order by l.id
limit :limit;

-- name: seal_before_recent
-- The seal before the first one to verify; no row if all are to be verified. At least one seal is verified.
with newest as (
    select id, sum(count) over (order by id desc) - count as behind
    from (select id, count from pabal.audit_seals order by id desc limit :seals) latest
)
select s.id, s.previous, s.first_id, s.last_id, s.count, s.ids, s.macs, s.below, s.floor, s.key_id, s.digest,
       extract(epoch from s.sealed_at)::text as sealed
from pabal.audit_seals s
where s.id < (select min(id) from newest where behind < :rows::bigint)
order by s.id desc
limit 1;

-- name: highest_sealed_row
-- Rows are sealed in the order of transactions, not of ids: rows up to this id may belong to a skipped seal.
select max(last_id) from pabal.audit_seals where id <= :seal;

-- name: count_skipped_seals
select count(*) from pabal.audit_seals where id <= :seal;

-- name: list_heads
select id, encode(digest, 'hex') as digest, count from pabal.audit_seals where id = any(:ids::bigint[]);

-- name: first_seal_with_previous
-- The first seal, if it is not the start of the chain.
select first.id
from (select id, previous from pabal.audit_seals order by id limit 1) first
where first.previous is not null;
