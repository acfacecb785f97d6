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
