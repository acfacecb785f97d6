-- name: find_relay_token
-- Without an account: the token is the key. An unpaired session expires with its code.
select s.id as token_id, s.id as session_id, s.account_id as account_id, coalesce(a.rate_limit_per_minute, 600) as rate_limit,
       s.paired_at is not null and s.disconnected_at is null as paired,
       s.revoked_at is not null or (s.account_id is null and s.expires_at <= pabal.now()) as is_invalid,
       a.disabled_at is not null as is_disabled
from public.relay_sessions s
left join public.accounts a on a.id = s.account_id
where s.token_hash = :token_hash
union all
select a.id, null, a.id, coalesce(a.rate_limit_per_minute, 600), true, false, a.disabled_at is not null
from public.accounts a
where a.relay_token_hash = :token_hash;

-- name: lock_account_shared
-- Shared, as receiving and pairing lock it: revoking a token waits for us, or is visible to us.
select true from public.accounts where id = :account for share;
