-- name: match_notifications
-- The range bounds the index scan; the suffix decides among the ids in it.
select t.id
from notification.requests t
where t.id between :low::uuid and :high::uuid and right(t.id::text, length(:suffix::text)) = :suffix
order by t.id
limit :limit;

-- name: match_rules
select t.id
from notification.rules t
where t.id between :low::uuid and :high::uuid and right(t.id::text, length(:suffix::text)) = :suffix
order by t.id
limit :limit;
