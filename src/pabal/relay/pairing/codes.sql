-- name: lock_account
-- Serialises the creation of codes for one account, so that the count is exact.
select true from public.accounts where id = :account for no key update;

-- name: count_live_codes
select a.disabled_at is not null as is_disabled, l.live_codes, l.next_expires_in
from public.accounts a
cross join lateral (
    select count(*) as live_codes, min(c.expires_at) - pabal.now() as next_expires_in
    from public.pairing_codes c
    where c.account_id = :account and c.used_at is null and c.expires_at > pabal.now()
) l
where a.id = :account;

-- name: insert_pairing_code
insert into public.pairing_codes (code, account_id, expires_at, metadata)
select :code, :account, pabal.now() + :life::interval, :metadata
where not exists (select from public.relay_sessions where code = :code)
on conflict (code) do nothing
returning code, expires_at;

-- name: purge_pairing_codes
-- A used code is kept for a week: if its user sends it again, the answer is that they are connected.
delete from public.pairing_codes
where code in (
    select code from public.pairing_codes
    where expires_at < pabal.now() - case when used_at is null then interval '0' else interval '7 days' end
    limit :batch
    for update skip locked
);
