-- name: find_token_accounts
-- A token belongs to one account for ever; that of a session that is not paired yet to none.
select a.relay_token_hash as name, a.id as account_id
from public.accounts a
where a.relay_token_hash = any(:names::text[])
union all
select s.token_hash, s.account_id
from public.relay_sessions s
where s.token_hash = any(:names::text[]) and s.account_id is not null;

-- name: find_conversation_accounts
select c.conversation_key as name, c.account_id
from public.conversation_mappings c
where c.conversation_key = any(:names::text[]) and c.account_id is not null;
