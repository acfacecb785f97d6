-- name: announce
insert into pabal.subscriptions as s (service_name, mode, event_types)
values (:service, 'handler', :event_types)
on conflict (service_name) where mode = 'handler' do update
set event_types = excluded.event_types, disabled_at = null, disabled_reason = null
where s.event_types <> excluded.event_types or s.disabled_at is not null;

-- name: idle
-- Whose handlers are to take nothing now: paused, or of a service that is kept out.
select s.name
from public.services s
left join pabal.subscriptions u on u.service_name = s.name and u.mode = 'handler'
where s.name = any(:services::text[]) and (u.paused_at is not null or not s.is_active);
