-- name: known_seal
-- The first seal has no previous one, unless seals before it were removed.
select (select s.id from pabal.audit_seals s where s.id = :id) as id,
       (select encode(s.digest, 'hex') from pabal.audit_seals s where s.id = :id) as digest,
       coalesce((select s.previous is null from pabal.audit_seals s order by s.id limit 1), true) as has_first_seal;

-- name: last_seal
select id, encode(digest, 'hex') as digest, count
from pabal.audit_seals
order by id desc
limit 1;

-- name: unsealed_for
-- The first row after the last seal. It waits for every transaction that was open when it was written.
select coalesce(pabal.now() - l.at, interval '0')
from (values (1)) as always
left join lateral (
    select s.below, s.floor from pabal.audit_seals s order by s.id desc limit 1
) s on true
left join lateral (
    select l.at from pabal.audit_log l
    where l.xid >= coalesce(s.below, '0') and l.id + 0 > coalesce(s.floor, 0)  -- "+ 0" prevents a scan of the primary key
    order by l.xid
    limit 1
) l on true;
