drop table if exists public.relay_streams;
drop function if exists pabal.take(text, interval, interval, integer);
drop table if exists public.command_answers;
drop table if exists public.relay_news;
alter table public.inbound_messages drop column if exists handed;
drop sequence if exists public.inbound_messages_handed_seq;
