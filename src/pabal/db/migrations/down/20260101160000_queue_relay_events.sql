-- Publish what is still in the outbox: its messages were acknowledged.
select pabal.emit_events('relay.message.received', array_agg(
  jsonb_build_object('message_id', m.id, 'account_id', m.account_id, 'conversation_key', m.conversation_key) order by m.id
))
from pabal.relay_outbox o
join public.inbound_messages m on m.id = o.message_id;

drop function if exists pabal.queue_message_events(uuid[]);
drop function if exists pabal.has_hub_event_subscriber(text);
drop table if exists pabal.relay_outbox;
