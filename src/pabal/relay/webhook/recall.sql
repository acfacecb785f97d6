-- name: void_callbacks
-- Kakao voids a callback once the webhook got another answer, so a reply to these messages is a late one.
-- Locked in the order of ids, as settling does.
update public.inbound_messages m
set callback_url = null, callback_expires_at = null
from (
    select m.id
    from unnest(:conversations::text[], :channels::text[], :source_events::text[]) as v (conversation_key, channel_id, source_event_id)
    join public.inbound_messages m
        on m.channel_id = v.channel_id and m.source_event_id = v.source_event_id
       and m.conversation_key is not distinct from v.conversation_key  -- keeps the planner off all messages of the conversation
    where m.callback_url is not null and not exists (select from public.relay_replies r where r.message_id = m.id)
    order by m.id
    for no key update of m
) void
where m.id = void.id
returning m.account_id;
