-- Takes back 20251201100500_create_relay_messages.sql.

drop table if exists public.relay_replies;
drop table if exists public.inbound_messages;
drop function if exists pabal.settle_message();
