-- Rows in every table of the specification, with each case that a rule of the adoption covers.

insert into auth.users (id, email) values ('01900000-0000-4000-8000-0000000000a1', 'admin@example.org');
insert into public.profiles (id, role) values ('01900000-0000-4000-8000-0000000000a1', 'admin');

insert into public.service_tokens (id, service_name, access_token, token_hash, permissions, expires_at, is_revoked, revoked_at, revoked_reason, issued_by, client_ip, created_at) values
  ('01900000-0000-4000-8000-000000000001', 'minu_find', 'jwt-1', 'hash-1', '["read"]', '2026-02-01', false, null, null, '01900000-0000-4000-8000-0000000000a1', '10.0.0.1', '2026-01-01'),
  ('01900000-0000-4000-8000-000000000002', 'minu_find', 'jwt-2', 'hash-1', '["read", "everything"]', '2026-03-01', false, null, null, null, null, '2026-01-02'),
  ('01900000-0000-4000-8000-000000000003', 'minu_keep', 'v1.old.jwt', 'hash-3', '"all"', '2026-02-01', true, '2026-01-05', 'leaked', null, null, '2026-01-01'),
  ('01900000-0000-4000-8000-000000000004', 'minu_keep', 'jwt-4', 'hash-4', '[]', '2026-02-01', true, null, null, null, null, '2026-01-01');
insert into public.refresh_tokens (id, service_token_id, refresh_token, token_hash, expires_at, revoked_at, revoked_reason, use_count, created_at) values
  ('01900000-0000-4000-8000-000000000012', '01900000-0000-4000-8000-000000000002', 'refresh-2', 'hash-r', null, null, null, 0, '2026-01-02'),
  ('01900000-0000-4000-8000-000000000013', '01900000-0000-4000-8000-000000000003', 'refresh-3', 'hash-r3', '2025-12-01', null, null, 1, '2026-01-01');
insert into public.refresh_tokens (id, service_token_id, refresh_token, token_hash, expires_at, revoked_at, revoked_reason, use_count, replaced_by, created_at) values
  ('01900000-0000-4000-8000-000000000011', '01900000-0000-4000-8000-000000000001', 'refresh-1', 'hash-r', '2026-02-01', '2026-01-02', 'rotated', 1, '01900000-0000-4000-8000-000000000012', '2026-01-01');

insert into public.event_queue (id, event_type, source_service, target_service, payload, status, retry_count, processed_at, processing_started_at, processor_id, last_error, error_history, priority, created_at, updated_at) values
  ('01900000-0000-4000-8000-000000000101', 'order.paid', 'minu_find', 'minu_frame', '{"n": 1}', 'pending', 0, null, null, null, null, '[]', 1, '2026-01-03', '2026-01-03'),
  ('01900000-0000-4000-8000-000000000102', 'order.paid', 'minu_find', 'minu_frame', '{"n": 2}', 'pending', 1, null, null, null, 'refused', null, 5, '2026-01-01', '2026-01-01'),
  ('01900000-0000-4000-8000-000000000103', 'order.paid', 'minu_find', 'minu_frame', '{}', 'processing', 0, null, '2026-01-04', 'worker-1', null, '[]', 5, '2026-01-02', '2026-01-04'),
  ('01900000-0000-4000-8000-000000000104', 'order.paid', 'minu_find', 'minu_frame', '{}', 'processing', 0, null, null, null, null, '[]', 5, '2026-01-02', '2026-01-04'),
  ('01900000-0000-4000-8000-000000000105', 'order.paid', 'hub', 'minu_keep', '{}', 'completed', 0, '2026-01-04', '2026-01-03', 'worker-1', null, '[]', 5, '2026-01-02', '2026-01-04'),
  ('01900000-0000-4000-8000-000000000106', 'order.paid', 'hub', 'minu_keep', '{}', 'cancelled', 0, null, null, null, null, '[]', 5, '2026-01-02', '2026-01-04'),
  ('01900000-0000-4000-8000-000000000107', 'price.changed', 'minu_build', null, '{"n": 7}', 'pending', 0, null, null, null, null, '[]', 5, '2026-01-02', '2026-01-02'),
  ('01900000-0000-4000-8000-000000000108', 'price.changed', 'minu_build', null, '{"n": 8}', 'completed', 0, '2026-01-04', null, null, null, '[]', 5, '2026-01-01', '2026-01-04'),
  ('01900000-0000-4000-8000-000000000109', 'order.lost', 'minu_find', 'minu_frame', '{"n": 9}', 'pending', 3, '2026-01-04', null, null, 'no route', '[]', 5, '2026-01-01', '2026-01-04'),
  ('01900000-0000-4000-8000-000000000110', 'order.lost', 'minu_find', 'minu_frame', '{"n": 10}', 'pending', 1, null, null, null, 'refused', '[]', 5, '2026-01-01', '2026-01-04');
-- One failure and two edits make three dead letters; a failure before the last retry makes none.
update public.event_queue set status = 'failed' where id = '01900000-0000-4000-8000-000000000109';
update public.event_queue set processor_id = 'edited' where id = '01900000-0000-4000-8000-000000000109';
update public.event_queue set processor_id = 'edited again' where id = '01900000-0000-4000-8000-000000000109';
update public.event_queue set status = 'failed' where id = '01900000-0000-4000-8000-000000000110';
-- An event that failed a second time for another reason, and a dead letter that was resolved.
insert into public.dead_letter_queue (id, event_id, original_event_type, original_source_service, original_target_service, original_payload, error_message, total_retry_count, failed_at)
values ('01900000-0000-4000-8000-000000000201', '01900000-0000-4000-8000-000000000109', 'order.lost', 'minu_find', 'minu_frame', '{"n": 9}', 'timed out', 3, now() + interval '1 hour');
insert into public.dead_letter_queue (id, event_id, original_event_type, original_source_service, original_payload, error_message, resolved_at, resolved_by, resolution_notes)
values ('01900000-0000-4000-8000-000000000202', '01900000-0000-4000-8000-000000000105', 'order.paid', 'hub', '{}', 'refused', '2026-01-04', '01900000-0000-4000-8000-0000000000a1', 'done by hand');

insert into guild.guilds (id) values ('01900000-0000-4000-8000-000000000301');
insert into identity.users (id) values ('01900000-0000-4000-8000-000000000302');
insert into notification.requests (id, recipient_type, recipient_id, guild_id, template_key, payload, state, attempt_count, last_error, scheduled_at, sent_at, created_at) values
  ('01900000-0000-4000-8000-000000000311', 'user_dm', '1', null, 'payment.succeeded', '{"amount": 1}', 'pending', 0, null, '2026-01-02', null, '2026-01-01'),
  ('01900000-0000-4000-8000-000000000312', 'user_dm', '1', null, 'payment.succeeded', '{}', 'sent', 1, null, '2026-01-02', '2026-01-03', '2026-01-01'),
  ('01900000-0000-4000-8000-000000000313', 'guild_audit_channel', '2', '01900000-0000-4000-8000-000000000301', 'guild.changed', '{}', 'sent', 7, null, '2026-01-02', null, '2026-01-01'),
  ('01900000-0000-4000-8000-000000000314', 'user_dm', '1', null, 'antinuke.triggered', '{}', 'failed', 3, null, '2026-01-02', null, '2026-01-01'),
  ('01900000-0000-4000-8000-000000000315', 'dashboard_toast', '3', null, 'marketing.news', '{}', 'suppressed', 0, null, '2026-01-02', '2026-01-02', '2026-01-01'),
  ('01900000-0000-4000-8000-000000000316', 'user_dm', '1', null, 'antinuke.triggered', '{}', 'pending', 0, null, '2026-01-02', null, '2026-01-01');
insert into notification.preferences (user_id, dm_enabled, marketing_notifications, updated_at)
values ('01900000-0000-4000-8000-000000000302', false, false, '2026-01-02');

insert into public.accounts (id, openclaw_user_id, relay_token_hash, rate_limit_per_minute, disabled_at) values
  ('01900000-0000-4000-8000-000000000401', 'mina', repeat('A', 64), 60, null),
  ('01900000-0000-4000-8000-000000000402', 'bora', repeat('b', 64), null, null),
  ('01900000-0000-4000-8000-000000000403', 'dana', repeat('b', 64), 0, '2026-01-02'),
  ('01900000-0000-4000-8000-000000000404', 'jun', 'bcrypt$x', 10, null);
insert into public.conversation_mappings (conversation_key, kakao_channel_id, plusfriend_user_key, account_id, state, paired_at, last_seen_at) values
  ('channel:one', 'channel', 'one', '01900000-0000-4000-8000-000000000401', 'PAIRED', '2026-01-02', '2026-01-03'),
  ('channel:two', 'channel', 'two', '01900000-0000-4000-8000-000000000401', 'PAIRED', null, '2026-01-03'),
  ('channel:three', 'channel', 'three', null, 'PAIRED', '2026-01-02', '2026-01-03'),
  ('channel:four', 'channel', 'four', '01900000-0000-4000-8000-000000000402', 'PENDING', null, '2026-01-03'),
  ('channel:five', 'channel', 'five', null, 'BLOCKED', null, '2026-01-03'),
  ('channel:six', 'channel', 'six', '01900000-0000-4000-8000-000000000401', 'UNPAIRED', null, '2026-01-03'),
  ('channel:seven', 'channel', 'seven', null, 'UNPAIRED', null, null);
insert into public.inbound_messages (id, account_id, conversation_key, kakao_payload, normalized, callback_url, callback_expires_at, status, source_event_id, created_at, delivered_at, acked_at) values
  ('01900000-0000-4000-8000-000000000411', '01900000-0000-4000-8000-000000000401', 'channel:one', '{}', '{"text": "hi"}', 'https://kakao.example/1', now() + interval '1 minute', 'QUEUED', 'event-1', now(), null, null),
  ('01900000-0000-4000-8000-000000000412', '01900000-0000-4000-8000-000000000401', 'channel:one', '{}', '{}', 'https://kakao.example/2', now(), 'DELIVERED', null, now(), null, null),
  ('01900000-0000-4000-8000-000000000413', '01900000-0000-4000-8000-000000000401', 'channel:one', '{}', '{}', 'https://kakao.example/3', now(), 'ACKED', null, '2026-01-01', '2026-01-02', null),
  ('01900000-0000-4000-8000-000000000414', '01900000-0000-4000-8000-000000000401', 'channel:two', '{}', '{}', 'https://kakao.example/4', now(), 'EXPIRED', 'event-4', '2026-01-01', null, '2026-01-02'),
  ('01900000-0000-4000-8000-000000000415', '01900000-0000-4000-8000-000000000402', 'channel:four', '{}', '{}', 'https://kakao.example/5', now(), 'QUEUED', 'event-5', null, null, null);
insert into public.pairing_codes (code, account_id, expires_at, used_at, used_by, metadata, created_at) values
  ('ABCD-2345', '01900000-0000-4000-8000-000000000401', '2026-01-02', null, null, '{"a": 1}', '2026-01-01'),
  ('ABCD-2346', '01900000-0000-4000-8000-000000000401', '2026-01-02', null, 'channel:one', null, '2026-01-01');
