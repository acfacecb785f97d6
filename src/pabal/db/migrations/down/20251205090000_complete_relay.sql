drop table if exists public.relay_streams;
drop function if exists pabal.take_limit(text, interval, interval, integer);
drop table if exists public.command_answers;
drop table if exists public.relay_control_events;
alter table public.inbound_messages drop column if exists delivery_seq;
drop sequence if exists public.inbound_messages_delivery_seq;
