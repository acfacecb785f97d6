-- name: publish_message_events
-- A message that was erased meanwhile has no event.
with moved as materialized (
    delete from pabal.relay_outbox o
    where o.message_id in (
        select w.message_id from pabal.relay_outbox w order by w.message_id limit :batch for update skip locked
    )
    returning o.message_id
),
published as materialized (
    select pabal.emit_events('relay.message.received', array_agg(
        jsonb_build_object('message_id', m.id, 'account_id', m.account_id, 'conversation_key', m.conversation_key) order by m.id
    )) as count
    from public.inbound_messages m
    where m.id = any (array(select message_id from moved))
)
select (select count(*) from moved) as messages, (select count from published) as events;
