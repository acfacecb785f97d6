-- name: create_relay_session
insert into public.relay_sessions (id, token_hash, code, client_address, expires_at)
select :id, :token_hash, :code, :client_address, pabal.now() + :life::interval
where not exists (select from public.pairing_codes where code = :code)
on conflict (code) do nothing;

-- name: find_relay_session_status
-- The token is the key. If owners approve pairings, a redeemed code stays pending until approval times out. A token that was
-- revoked before its first pairing still shows its status.
select case
           when s.disconnected_at is not null then 'disconnected'
           when s.paired_at is not null then 'paired'
           when s.revoked_at is not null then 'expired'
           when s.account_id is not null or s.expires_at > pabal.now() then 'pending_pairing'
           else 'expired'
       end as state,
       s.account_id as account_id, s.paired_at, p.plusfriend_user_key as user_key, a.disabled_at is not null as is_disabled
from public.relay_sessions s
left join public.accounts a on a.id = s.account_id
left join lateral (
    select c.plusfriend_user_key
    from public.conversation_mappings c
    where c.account_id = s.account_id and c.state = 'PAIRED'
    order by c.conversation_key = s.used_by desc, c.paired_at, c.conversation_key
    limit 1
) p on true
where s.token_hash = :token_hash and (s.revoked_at is null or s.paired_at is null);

-- name: lock_relay_sessions
select id from public.relay_sessions
where account_id = any(:accounts::uuid[])
order by id
for no key update;

-- name: sync_sessions_with_pairings
update public.relay_sessions s
set paired_at = case when a.is_connected then coalesce(s.paired_at, pabal.now()) else s.paired_at end,
    disconnected_at = case when not a.is_connected and s.paired_at is not null then coalesce(s.disconnected_at, pabal.now()) end
from (
    select a.id, exists (
        select from public.conversation_mappings c where c.account_id = a.id and c.state = 'PAIRED'
    ) as is_connected
    from unnest(:accounts::uuid[]) as a (id)
) a
where s.account_id = a.id and s.account_id = any(:accounts::uuid[]);

-- name: revoke_abandoned_sessions
-- Sessions whose code was used by a user who was not approved, with no other user pending and no other unused code.
update public.relay_sessions s
set revoked_at = pabal.now()
where s.account_id is not null and s.paired_at is null and s.revoked_at is null
  and (:accounts::uuid[] is null or s.account_id = any(:accounts))
  and not exists (
      select from public.conversation_mappings c where c.account_id = s.account_id and c.state in ('PENDING', 'PAIRED')
  )
  and not exists (
      select from public.pairing_codes c
      where c.account_id = s.account_id and c.used_at is null and c.expires_at > pabal.now()
  );

-- name: purge_relay_sessions
delete from public.relay_sessions
where id in (
    select id from public.relay_sessions
    where account_id is null and expires_at < pabal.now() - :keep::interval
    limit :batch
    for update skip locked
);
