-- name: match_accounts
-- The range bounds the index scan; the suffix decides among the ids in it.
select t.id
from public.accounts t
where t.id between :low::uuid and :high::uuid and right(t.id::text, length(:suffix::text)) = :suffix
order by t.id
limit :limit;

-- name: match_messages
select t.id
from public.inbound_messages t
where t.id between :low::uuid and :high::uuid and right(t.id::text, length(:suffix::text)) = :suffix
order by t.id
limit :limit;
