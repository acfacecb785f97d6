-- The seed's indexes by name, then those its foreign keys and our columns need.

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

-- event_queue: only what never changes. An index on a column that moves would make every update write all of them, so
-- idx_event_queue_pending, _retry, _status, _processing and _processed_at come with the event lane and its narrow tables.
create index if not exists idx_event_queue_event_type on public.event_queue (event_type);
create index if not exists idx_event_queue_source_service on public.event_queue (source_service);
create index if not exists idx_event_queue_target_service on public.event_queue (target_service) where target_service is not null;
create index if not exists idx_event_queue_created_at on public.event_queue (created_at desc);

-- dead_letter_queue
create index if not exists idx_dead_letter_queue_event_id on public.dead_letter_queue (event_id) where event_id is not null;
create index if not exists idx_dead_letter_queue_event_type on public.dead_letter_queue (original_event_type);
create index if not exists idx_dead_letter_queue_source on public.dead_letter_queue (original_source_service);
create index if not exists idx_dead_letter_queue_unresolved on public.dead_letter_queue (failed_at desc) where resolved_at is null;
create index if not exists idx_dead_letter_queue_failed_at on public.dead_letter_queue (failed_at desc);

-- Ours: a family finds its tokens, and deleting a row finds whoever refers to it without reading the whole table.
create index if not exists idx_token_families_service_name on public.token_families (service_name);
create index if not exists idx_token_families_expires_at on public.token_families (expires_at);
create index if not exists idx_service_tokens_family_id on public.service_tokens (family_id);
create index if not exists idx_refresh_tokens_family_id on public.refresh_tokens (family_id);
create index if not exists idx_refresh_tokens_replaced_by on public.refresh_tokens (replaced_by) where replaced_by is not null;
create index if not exists idx_event_queue_parent_id on public.event_queue (parent_id) where parent_id is not null;
create index if not exists idx_dead_letter_queue_resolved_by on public.dead_letter_queue (resolved_by) where resolved_by is not null;
create index if not exists idx_dead_letter_queue_signature on public.dead_letter_queue (signature) where resolved_at is null;

-- One event per key and source, decided by the database.
create unique index if not exists idx_event_queue_idempotency_key
  on public.event_queue (source_service, idempotency_key)
  where idempotency_key is not null;
