-- The repair of the event lane's tables compares a slice of each table per run and continues where the last run ended.

create table if not exists pabal.event_repair_positions (
  name text primary key,
  after uuid not null
);
comment on table pabal.event_repair_positions is 'Where the repair of the event tables continues. A table without a row is read from its beginning.';
comment on column pabal.event_repair_positions.name is 'The table that is read.';
comment on column pabal.event_repair_positions.after is 'The last id that was read.';

alter table pabal.event_repair_positions enable row level security;
drop policy if exists "event_repair_positions_service_role_all" on pabal.event_repair_positions;
create policy "event_repair_positions_service_role_all" on pabal.event_repair_positions for all to service_role using (true) with check (true);
revoke all on table pabal.event_repair_positions from public, anon, authenticated;
grant select, insert, update, delete on table pabal.event_repair_positions to service_role;
