-- name: export_conversation
-- Rows as they are, so that a column added later is not forgotten here; what would let a reader answer or come in is taken out.
select to_jsonb(c) - '{last_callback_url,last_callback_url_expires_at}'::text[]
from public.conversation_mappings c
where c.conversation_key = :conversation;

-- name: export_messages
select to_jsonb(m) - '{callback_url,lease,leased_until}'::text[]
       || jsonb_build_object(
           'kakao_payload', m.kakao_payload #- '{userRequest,callbackUrl}',
           'reply', (select to_jsonb(r) - '{fence}'::text[] from public.relay_replies r where r.message_id = m.id)
       )
from public.inbound_messages m
where m.conversation_key = :conversation
order by m.seq;

-- name: export_pairings
-- The codes it has redeemed, of owners and of sessions, as far as they are kept.
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
-- When it asked something of the hub itself. What it was told may hold the way to its page.
select to_jsonb(a) - '{answer}'::text[] from public.command_answers a where a.conversation_key = :conversation order by a.created_at;

-- name: export_page_codes
select to_jsonb(p) - '{code_hash,cookie_hash}'::text[] from public.conversation_codes p where p.conversation_key = :conversation order by p.created_at;

-- name: export_wrong_codes
select to_jsonb(f) from public.pairing_failures f where f.conversation_key = :conversation;

-- name: export_events
-- What the hub has told other services of it.
select jsonb_build_object('id', e.id, 'event_type', e.event_type, 'created_at', e.created_at, 'payload', e.payload)
from public.event_queue e
where e.source_service = 'hub' and e.payload ->> 'conversation_key' = :conversation and e.parent_id is null
order by e.created_at;

-- name: export_audit_entries
select jsonb_build_object('at', a.at, 'actor', a.actor, 'action', a.action, 'details', a.details)
from pabal.audit_log a
where a.subject = :alias
order by a.id;

-- name: export_time
select to_jsonb(pabal.now());
