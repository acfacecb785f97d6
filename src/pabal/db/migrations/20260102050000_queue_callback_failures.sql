-- The relay's rare events, of failed callbacks and of pairings, go through an outbox of the relay as well: a lock on a table of
-- the events stops neither a reply nor a pairing. A chore publishes them.

create table if not exists pabal.relay_event_outbox (
  id uuid primary key default pabal.uuid7(),
  event_type text not null,
  payload jsonb not null,
  created_at timestamptz not null default pabal.now()
);
comment on table pabal.relay_event_outbox is 'Events of the relay that are not published yet; kept for about a second.';
comment on column pabal.relay_event_outbox.id is 'Orders the events of one second.';
comment on column pabal.relay_event_outbox.event_type is 'relay.callback.failed or relay.pairing.verified.';
comment on column pabal.relay_event_outbox.payload is 'The payload of the event.';
comment on column pabal.relay_event_outbox.created_at is 'When it happened.';

alter table pabal.relay_event_outbox enable row level security;
drop policy if exists "relay_event_outbox_service_role_all" on pabal.relay_event_outbox;
create policy "relay_event_outbox_service_role_all" on pabal.relay_event_outbox for all to service_role using (true) with check (true);
revoke all on table pabal.relay_event_outbox from public, anon, authenticated;
grant select, insert, update, delete on table pabal.relay_event_outbox to service_role;
