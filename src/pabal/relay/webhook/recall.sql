-- name: void_callbacks
-- The user has been told something else meanwhile, and with that Kakao's callback is void: the answer will be a late one.
-- In the order of ids, as settles lock them.
update public.inbound_messages m
set callback_url = null, callback_expires_at = null
from (
    select m.id
    from unnest(:conversations::text[], :channels::text[], :source_events::text[]) as v (conversation_key, channel_id, source_event_id)
    join public.inbound_messages m
        on m.channel_id = v.channel_id and m.source_event_id = v.source_event_id and m.conversation_key = v.conversation_key
    where m.callback_url is not null and not exists (select from public.relay_replies r where r.message_id = m.id)
    order by m.id
    for no key update of m
) void
where m.id = void.id
returning m.account_id;
