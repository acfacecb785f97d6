-- The specification's four services exist in every hub, because its own INSERTs name them. In a new hub they are disabled: they
-- can get no token until an operator enables them. A database in which anything was ever recorded keeps them as they are, and
-- so does one whose session sets pabal.keep_services = 'on', as an adoption does before it copies the rows.

update public.services s
set is_active = false, disabled_at = pabal.now()
where s.name in ('minu_find', 'minu_frame', 'minu_build', 'minu_keep') and s.is_active
  and current_setting('pabal.keep_services', true) is distinct from 'on'
  and not exists (select from pabal.operators)
  and not exists (select from pabal.audit_log)
  and not exists (select from public.service_secrets)
  and not exists (select from public.token_families)
  and not exists (select from public.event_queue)
  and not exists (select from public.dead_letter_queue)
  and not exists (select from pabal.subscriptions)
  and not exists (select from pabal.service_sql_roles)
  and not exists (select from notification.requests)
  and not exists (select from public.inbound_messages);
