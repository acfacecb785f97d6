-- name: match_access_tokens
-- The range bounds the index scan; the suffix decides among the ids in it.
select t.id
from public.service_tokens t
where t.id between :low::uuid and :high::uuid and right(t.id::text, length(:suffix::text)) = :suffix
order by t.id
limit :limit;

-- name: match_families
select t.id
from public.token_families t
where t.id between :low::uuid and :high::uuid and right(t.id::text, length(:suffix::text)) = :suffix
order by t.id
limit :limit;
