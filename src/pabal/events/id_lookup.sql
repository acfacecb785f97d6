-- name: match_events
-- The range bounds the index scan; the suffix decides among the ids in it.
select t.id
from public.event_queue t
where t.id between :low::uuid and :high::uuid and right(t.id::text, length(:suffix::text)) = :suffix
order by t.id
limit :limit;

-- name: match_dead_letters
select t.id
from public.dead_letter_queue t
where t.id between :low::uuid and :high::uuid and right(t.id::text, length(:suffix::text)) = :suffix
order by t.id
limit :limit;

-- name: match_subscriptions
select t.id
from pabal.subscriptions t
where t.id between :low::uuid and :high::uuid and right(t.id::text, length(:suffix::text)) = :suffix
order by t.id
limit :limit;
