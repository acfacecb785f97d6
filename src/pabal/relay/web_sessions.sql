-- name: insert_portal_session
insert into pabal.portal_sessions (cookie_hash, token_hash, expires_at)
values (:cookie_hash, :token_hash, pabal.now() + :life::interval);

-- name: find_portal_token_hash
-- The cookie is the key.
select token_hash from pabal.portal_sessions where cookie_hash = :cookie_hash and expires_at > pabal.now();

-- name: replace_portal_token
update pabal.portal_sessions set token_hash = :token_hash where cookie_hash = :cookie_hash and token_hash = :before;

-- name: delete_portal_session
delete from pabal.portal_sessions where cookie_hash = :cookie_hash;

-- name: find_pending_session_code
select s.code, s.expires_at - pabal.now() as expires_in
from public.relay_sessions s
where s.id = :session and s.account_id is null and s.revoked_at is null and s.expires_at > pabal.now();

-- name: purge_portal_sessions
delete from pabal.portal_sessions
where cookie_hash in (select cookie_hash from pabal.portal_sessions where expires_at <= pabal.now() limit :batch);

-- name: open_chat_page
-- Of concurrent requests with the same code, one gets the row; the others wait for its lock and then find it opened.
update public.conversation_codes
set opened_at = pabal.now(), cookie_hash = :cookie_hash
where code_hash = :code_hash and opened_at is null and expires_at > pabal.now()
returning expires_at - pabal.now();

-- name: find_chat_page_session
-- The cookie is the key.
select conversation_key, expires_at - pabal.now() as expires_in
from public.conversation_codes
where cookie_hash = :cookie_hash and expires_at > pabal.now();

-- name: delete_chat_page_session
delete from public.conversation_codes where cookie_hash = :cookie_hash;

-- name: find_conversation_details
select c.conversation_key, c.state, c.blocked_by, c.kakao_channel_id as channel, c.plusfriend_user_key as user, c.account_id,
       a.openclaw_user_id as account, a.disabled_at is not null as is_disabled, c.first_seen_at, c.last_seen_at, c.paired_at,
       (select count(*) from public.inbound_messages m where m.conversation_key = c.conversation_key) as messages,
       (
           select count(*) from public.inbound_messages m
           where m.conversation_key = c.conversation_key and m.account_id = c.account_id and m.status in ('QUEUED', 'DELIVERED')
       ) as open_messages
from public.conversation_mappings c
left join public.accounts a on a.id = c.account_id
where c.conversation_key = :conversation;
