-- name: register_templates
-- Ordered by key, so that two processes that start together cannot deadlock.
insert into notification.templates as t (key, category, criticality, variables, texts, checksum)
select b.key, b.category, b.criticality, b.variables::jsonb, b.texts::jsonb, b.checksum
from unnest(
    :keys::text[], :categories::text[], :criticalities::text[], :variables::text[], :texts::text[], :checksums::text[]
) as b (key, category, criticality, variables, texts, checksum)
order by b.key
on conflict (key) do update
set category = excluded.category, criticality = excluded.criticality, variables = excluded.variables, texts = excluded.texts,
    checksum = excluded.checksum, version = t.version + 1, registered_at = pabal.now(), retired_at = null
where t.checksum <> excluded.checksum or t.retired_at is not null
returning t.key;

-- name: retire_templates
update notification.templates t
set retired_at = pabal.now()
from (
    select key from notification.templates
    where not key = any(:keys::text[]) and retired_at is null
    order by key
    for no key update
) undefined
where t.key = undefined.key
returning t.key;
