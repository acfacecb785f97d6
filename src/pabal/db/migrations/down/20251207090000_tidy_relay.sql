drop index if exists public.conversation_mappings_unpaired_idx;
drop index if exists public.relay_sessions_waiting_idx;
alter table public.relay_streams drop column if exists after_id;
