-- A few events to look at, only where asked for: set pabal.sample_data = 'on' in the session that migrates.
-- No tokens: a made-up one could neither be checked nor rewrapped.

insert into public.event_queue (id, event_type, source_service, target_service, payload, status, retry_count, last_error)
select id, event_type, source_service, target_service, payload, status, retry_count, last_error
from (values
  ('01933000-0000-7000-8000-000000000001'::uuid, 'token.issued', 'hub', 'minu_find',
   '{"sample": true}'::jsonb, 'completed', 0, null),
  ('01933000-0000-7000-8000-000000000002', 'service.sync', 'minu_find', 'minu_frame',
   '{"sample": true, "full": false}', 'pending', 0, null),
  ('01933000-0000-7000-8000-000000000003', 'data.updated', 'minu_build', 'minu_keep',
   '{"sample": true, "project": 7}', 'failed', 3, 'answered 503 after 30 s')
) as sample (id, event_type, source_service, target_service, payload, status, retry_count, last_error)
where current_setting('pabal.sample_data', true) = 'on'
on conflict (id) do nothing;
