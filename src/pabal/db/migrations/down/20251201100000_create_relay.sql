-- Takes back 20251201100000_create_relay.sql.

drop table if exists public.conversation_codes;
drop table if exists public.pairing_failures;
drop table if exists public.conversation_mappings;
drop function if exists pabal.settle_conversation();
drop table if exists public.pairing_codes;
drop table if exists public.relay_sessions;
drop table if exists public.accounts;
