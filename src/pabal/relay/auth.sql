-- name: find_relay_token
-- By hash alone: the token is the key, and the answer says whose it is. A session nobody paired dies with its code.
select s.id as token_id, s.id as session_id, s.account_id as account_id, coalesce(a.rate_limit_per_minute, 60) as rate_limit,
       s.paired_at is not null and s.disconnected_at is null as paired,
       s.revoked_at is not null or (s.account_id is null and s.expires_at <= pabal.now()) as is_invalid,
       a.disabled_at is not null as is_disabled
from public.relay_sessions s
left join public.accounts a on a.id = s.account_id
where s.token_hash = :token_hash
union all
select a.id, null, a.id, coalesce(a.rate_limit_per_minute, 60), true, false, a.disabled_at is not null
from public.accounts a
where a.relay_token_hash = :token_hash;

-- name: lock_account_shared
-- Shared, as whoever writes or pairs holds it: who ends its tokens, or its sessions with them, waits or is seen.
select true from public.accounts where id = :account for share;
