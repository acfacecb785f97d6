-- name: find_unknown_services
-- Names that events carry and no service has. Steps from name to name on the indexes by source and target, so it reads one row
-- per name and not every event.
with recursive sources as (
    (select e.source_service as name from public.event_queue e order by e.source_service limit 1)
    union all
    select (
        select e.source_service from public.event_queue e where e.source_service > s.name order by e.source_service limit 1
    )
    from sources s
    where s.name is not null
),
targets as (
    (select e.target_service as name from public.event_queue e where e.target_service is not null order by e.target_service limit 1)
    union all
    select (
        select e.target_service from public.event_queue e where e.target_service > t.name order by e.target_service limit 1
    )
    from targets t
    where t.name is not null
)
select n.name
from (select name from sources union select name from targets) n
where n.name is not null and not exists (select from public.services s where s.name = n.name)
order by n.name
limit :limit;
