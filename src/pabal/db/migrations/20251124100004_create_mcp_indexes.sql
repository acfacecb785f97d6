-- The indexes of the specification, then those for foreign keys and for columns it does not have.

-- service_tokens
create index if not exists idx_service_tokens_service_name on public.service_tokens (service_name);
create unique index if not exists idx_service_tokens_token_hash on public.service_tokens (token_hash);
create index if not exists idx_service_tokens_expires_at on public.service_tokens (expires_at) where is_revoked = false;
create index if not exists idx_service_tokens_valid on public.service_tokens (service_name, expires_at) where is_revoked = false;
create index if not exists idx_service_tokens_issued_by on public.service_tokens (issued_by) where issued_by is not null;
create index if not exists idx_service_tokens_created_at on public.service_tokens (created_at desc);

-- refresh_tokens
create index if not exists idx_refresh_tokens_service_token_id on public.refresh_tokens (service_token_id);
create unique index if not exists idx_refresh_tokens_token_hash on public.refresh_tokens (token_hash);
create index if not exists idx_refresh_tokens_valid on public.refresh_tokens (service_token_id) where revoked_at is null;
create index if not exists idx_refresh_tokens_expires_at
  on public.refresh_tokens (expires_at)
  where revoked_at is null and expires_at is not null;

-- event_queue: only columns that never change. An index on a column that changes would make no update HOT, so
-- idx_event_queue_pending, _retry, _status, _processing and _processed_at are created with the event lane.
-- A service lists its events in the order (created_at, id); without the id, which orders events of one transaction, the
-- planner prefers to sort all events of the service.
create index if not exists idx_event_queue_event_type on public.event_queue (event_type);
create index if not exists idx_event_queue_source_service on public.event_queue (source_service, created_at, id);
create index if not exists idx_event_queue_target_service on public.event_queue (target_service, created_at, id)
  where target_service is not null;
create index if not exists idx_event_queue_created_at on public.event_queue (created_at desc);

-- dead_letter_queue
create index if not exists idx_dead_letter_queue_event_id on public.dead_letter_queue (event_id) where event_id is not null;
create index if not exists idx_dead_letter_queue_event_type on public.dead_letter_queue (original_event_type);
create index if not exists idx_dead_letter_queue_source on public.dead_letter_queue (original_source_service);
create index if not exists idx_dead_letter_queue_unresolved on public.dead_letter_queue (failed_at desc) where resolved_at is null;
create index if not exists idx_dead_letter_queue_failed_at on public.dead_letter_queue (failed_at desc);

-- Tokens of a family, and rows that refer to a deleted row.
create index if not exists idx_token_families_service_name on public.token_families (service_name);
create index if not exists idx_token_families_expires_at on public.token_families (expires_at);
create index if not exists idx_token_families_revoked_at on public.token_families (revoked_at) where revoked_at is not null;
-- Live families of a service, counted and listed without reading ended ones.
create index if not exists idx_token_families_live on public.token_families (service_name, expires_at desc, id desc)
  where revoked_at is null;
create index if not exists idx_service_tokens_family_id on public.service_tokens (family_id);
create index if not exists idx_refresh_tokens_family_id on public.refresh_tokens (family_id);
create index if not exists idx_refresh_tokens_replaced_by on public.refresh_tokens (replaced_by) where replaced_by is not null;
create index if not exists idx_event_queue_parent_id on public.event_queue (parent_id) where parent_id is not null;
create index if not exists idx_dead_letter_queue_resolved_by on public.dead_letter_queue (resolved_by) where resolved_by is not null;
create index if not exists idx_dead_letter_queue_signature on public.dead_letter_queue (signature) where resolved_at is null;

-- One event per idempotency key and source.
create unique index if not exists idx_event_queue_idempotency_key
  on public.event_queue (source_service, idempotency_key)
  where idempotency_key is not null;
-- The chore that expires idempotency keys.
create index if not exists idx_event_queue_keyed on public.event_queue (created_at) where idempotency_key is not null;
-- A trace starts from a correlation id; deliveries are found through their parent.
create index if not exists idx_event_queue_correlation_id on public.event_queue (correlation_id)
  where correlation_id is not null and parent_id is null;
