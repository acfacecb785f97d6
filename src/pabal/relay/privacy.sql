-- name: count_conversation_data
select
    (select count(*) from public.inbound_messages m where m.conversation_key = :conversation) as messages,
    (
        select count(*) from public.relay_replies r
        join public.inbound_messages m on m.id = coalesce(r.message_id, r.continues)
        where m.conversation_key = :conversation
    ) as replies,
    (select count(*) from pabal.hub_events_about('conversation_key', :conversation)) as events,
    (select count(*) from pabal.hub_dead_letters_about('conversation_key', :conversation)) as dead_letters,
    1 + (select count(*) from public.command_answers a where a.conversation_key = :conversation)
    + (select count(*) from public.conversation_codes p where p.conversation_key = :conversation)
    + (select count(*) from public.pairing_failures f where f.conversation_key = :conversation)
    + (select count(*) from public.pairing_codes c where c.used_by = :conversation)
    + (select count(*) from public.relay_sessions s where s.used_by = :conversation)
    + (select count(*) from public.relay_control_events n where n.data ->> 'conversationKey' = :conversation)
    + (select count(*) from pabal.relay_event_outbox o where o.payload ->> 'conversation_key' = :conversation)
    + (select count(*) from pabal.limits_of(array[:conversation::text]))
    as others
from public.conversation_mappings c
where c.conversation_key = :conversation;

-- name: lock_messages
-- Messages before replies and each by id, as replying locks them.
select m.id
from public.inbound_messages m
where m.conversation_key = :conversation
order by m.id
for update;

-- name: lock_replies
select r.id
from public.relay_replies r
where r.message_id = any(:messages::uuid[]) or r.continues = any(:messages::uuid[])
order by r.id
for update;

-- name: delete_messages
-- Cascades to their replies.
delete from public.inbound_messages where id = any(:messages::uuid[]);

-- name: delete_queued_events
-- Before the published events: it waits for the chore that publishes, whose events are then deleted as well.
delete from pabal.relay_event_outbox o where o.payload ->> 'conversation_key' = :conversation;

-- name: delete_events
-- Published events and their deliveries. Triggers remove them from the lane.
select pabal.delete_hub_events_about('conversation_key', :conversation);

-- name: delete_dead_letters
select pabal.delete_hub_dead_letters_about('conversation_key', :conversation);

-- name: unlink_pairing_codes
-- The code stays used.
update public.pairing_codes set used_by = null where used_by = :conversation;

-- name: unlink_sessions
update public.relay_sessions set used_by = null where used_by = :conversation;

-- name: delete_control_events
delete from public.relay_control_events n where n.data ->> 'conversationKey' = :conversation;

-- name: delete_limits
select pabal.delete_limits_of(array[:conversation::text]);

-- name: delete_conversation
-- Cascades to command responses, wrong codes and page codes.
delete from public.conversation_mappings where conversation_key = :conversation;

-- name: export_conversation
-- Whole rows, so that a column added later is exported too; without what grants access: callback URLs, leases, hashes.
select to_jsonb(c) - '{last_callback_url,last_callback_url_expires_at}'::text[]
from public.conversation_mappings c
where c.conversation_key = :conversation;

-- name: export_messages
select to_jsonb(m) - '{callback_url,lease,leased_until}'::text[]
       || jsonb_build_object(
           'kakao_payload', m.kakao_payload #- '{userRequest,callbackUrl}',
           'reply', (select to_jsonb(r) - '{fence}'::text[] from public.relay_replies r where r.message_id = m.id),
           'further_replies', (
               select coalesce(jsonb_agg(to_jsonb(r) - '{fence}'::text[] order by r.answered_at, r.id), '[]')
               from public.relay_replies r
               where r.continues = m.id
           )
       )
from public.inbound_messages m
where m.conversation_key = :conversation
order by m.seq;

-- name: export_pairings
-- Redeemed codes, of owners and of sessions, until they are purged.
select to_jsonb(p)
from (
    select 'code' as kind, c.account_id, c.used_at, null::timestamptz as paired_at, null::timestamptz as disconnected_at
    from public.pairing_codes c
    where c.used_by = :conversation
    union all
    select 'session', s.account_id, s.used_at, s.paired_at, s.disconnected_at
    from public.relay_sessions s
    where s.used_by = :conversation
) p
order by p.used_at;

-- name: export_commands
-- Without the response, which may hold a link to the chat page.
select to_jsonb(a) - '{answer}'::text[] from public.command_answers a where a.conversation_key = :conversation order by a.created_at;

-- name: export_page_codes
select to_jsonb(p) - '{code_hash,cookie_hash}'::text[] from public.conversation_codes p where p.conversation_key = :conversation order by p.created_at;

-- name: export_wrong_codes
select to_jsonb(f) from public.pairing_failures f where f.conversation_key = :conversation;

-- name: export_events
-- Events that the hub published to other services.
select jsonb_build_object('id', e.id, 'event_type', e.event_type, 'created_at', e.created_at, 'payload', e.payload)
from pabal.hub_events_about('conversation_key', :conversation) e
where e.parent_id is null
order by e.created_at;

-- name: export_audit_entries
select a.entry from pabal.audit_entries_about(:pseudonym, include_own => false) a order by a.id;

-- name: export_time
select to_jsonb(pabal.now());
