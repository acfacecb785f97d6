drop function if exists pabal.resume_relay_messages(uuid, uuid, uuid, uuid, interval, bigint, integer);
drop function if exists pabal.open_relay_stream(text, uuid, uuid, bigint, interval, interval, integer, integer);
alter table public.relay_streams drop column if exists process_id;
