drop index if exists public.relay_replies_failed_idx;
drop index if exists public.conversation_mappings_state_idx;
drop table if exists pabal.portal_sessions;
drop index if exists public.conversation_codes_cookie_idx;
alter table public.conversation_codes drop column if exists cookie_hash;
