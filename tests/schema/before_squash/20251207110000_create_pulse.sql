-- The pulse: what became of each lane's rows, minute by minute. Every process counts in memory and adds what it counted
-- every few seconds, so nothing here is on anybody's way. The key begins with the minute: that is how it is read, and how
-- it is forgotten. The counts move and the key does not, so a change stays on its page.

create table if not exists pabal.pulse (
  minute timestamptz not null,
  lane text not null,
  done bigint not null default 0,
  failed bigint not null default 0,
  dead bigint not null default 0,
  constraint pulse_pkey primary key (minute, lane),
  constraint pulse_is_counted check (done >= 0 and failed >= 0 and dead >= 0)
) with (fillfactor = 70);
comment on table pabal.pulse is 'What became of each lane''s rows, by the minute it was written down in; kept for a day.';
comment on column pabal.pulse.minute is 'The beginning of the minute.';
comment on column pabal.pulse.lane is 'The lane: relay, events or notifications.';
comment on column pabal.pulse.done is 'How many were done.';
comment on column pabal.pulse.failed is 'How many attempts failed that did not end their row; for the relay callbacks that failed, and messages that expired.';
comment on column pabal.pulse.dead is 'How many died.';

alter table pabal.pulse enable row level security;
drop policy if exists "pulse_service_role_all" on pabal.pulse;
create policy "pulse_service_role_all" on pabal.pulse for all to service_role using (true) with check (true);
revoke all on table pabal.pulse from public, anon, authenticated;
grant select, insert, update, delete on table pabal.pulse to service_role;
