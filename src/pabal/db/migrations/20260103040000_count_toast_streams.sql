-- The open toast streams of all processes. A stream takes a slot of its person, so the key itself limits their number: two
-- openings at once cannot take the same slot, and no lock is needed. Every open stream is extended each ten seconds, so alive_until has
-- no index and the pages have room: an update then writes no index. The purge reads the whole table, a row per open stream.

create table if not exists notification.toast_streams (
  recipient text not null,
  slot integer not null,
  id uuid not null,
  alive_until timestamptz not null,
  constraint toast_streams_pkey primary key (recipient, slot)
) with (fillfactor = 50);
comment on table notification.toast_streams is 'Open toast streams of all processes.';
comment on column notification.toast_streams.recipient is 'Hash of the person whose toasts it gets.';
comment on column notification.toast_streams.slot is 'Numbers the streams of a person, from 1.';
comment on column notification.toast_streams.id is 'Id of the stream.';
comment on column notification.toast_streams.alive_until is 'Extended by its process; after this time the slot is free.';

alter table notification.toast_streams enable row level security;
drop policy if exists "toast_streams_service_role_all" on notification.toast_streams;
create policy "toast_streams_service_role_all" on notification.toast_streams for all to service_role using (true) with check (true);
revoke all on table notification.toast_streams from public, anon, authenticated;
grant select, insert, update, delete on table notification.toast_streams to service_role;
