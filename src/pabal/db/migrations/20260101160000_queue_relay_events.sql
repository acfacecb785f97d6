-- The chat writes no table of the events. A message that a service wants to know about is noted in an outbox of the relay,
-- in the statement that stores the message, and a chore publishes its event.

create table if not exists pabal.relay_outbox (
  message_id uuid primary key,
  created_at timestamptz not null default pabal.now()
);
comment on table pabal.relay_outbox is 'Messages whose event relay.message.received is not published yet; kept for about a second.';
comment on column pabal.relay_outbox.message_id is 'The message; if it is deleted before its event is published, there is no event.';
comment on column pabal.relay_outbox.created_at is 'When the message was stored.';

alter table pabal.relay_outbox enable row level security;
drop policy if exists "relay_outbox_service_role_all" on pabal.relay_outbox;
create policy "relay_outbox_service_role_all" on pabal.relay_outbox for all to service_role using (true) with check (true);
revoke all on table pabal.relay_outbox from public, anon, authenticated;
grant select, insert, update, delete on table pabal.relay_outbox to service_role;

create or replace function pabal.has_hub_event_subscriber(event_type text) returns boolean
language plpgsql stable
set search_path = ''
as $$
begin
  return exists (select from pabal.subscription_patterns)
    and exists (select from pabal.matching_subscribers(has_hub_event_subscriber.event_type, false));
end
$$;
comment on function pabal.has_hub_event_subscriber(text) is 'Whether a service that may receive the events of the hub subscribes to this type.';
revoke all on function pabal.has_hub_event_subscriber(text) from public, anon, authenticated;
grant execute on function pabal.has_hub_event_subscriber(text) to service_role;

create or replace function pabal.queue_message_events(message_ids uuid[]) returns bigint
language plpgsql
set search_path = ''
as $$
declare
  inserted bigint := 0;
begin
  if cardinality(queue_message_events.message_ids) > 0 and pabal.has_hub_event_subscriber('relay.message.received') then
    insert into pabal.relay_outbox (message_id) select unnest(queue_message_events.message_ids);
    get diagnostics inserted = row_count;
  end if;
  return inserted;
end
$$;
comment on function pabal.queue_message_events(uuid[]) is 'Notes messages in the outbox, if there is a subscriber; returns how many.';
revoke all on function pabal.queue_message_events(uuid[]) from public, anon, authenticated;
grant execute on function pabal.queue_message_events(uuid[]) to service_role;
