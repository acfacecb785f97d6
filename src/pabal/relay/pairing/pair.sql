-- name: find_lockout
select locked_until - pabal.now() from public.pairing_failures
where conversation_key = :conversation and locked_until > pabal.now();

-- name: redeem_pairing_code
-- A code belongs to an account, or to a session, which gets its account now. A concurrent attempt waits for the code's row
-- and then finds it used. The account is locked before its code; the shared lock orders us against disabling it.
with owner as materialized (
    select a.id
    from public.pairing_codes c
    join public.accounts a on a.id = c.account_id
    where c.code = :code and c.used_at is null and a.disabled_at is null
    for share of a
),
generated as (
    update public.pairing_codes c
    set used_at = pabal.now(), used_by = :conversation
    from owner o
    where c.code = :code and c.account_id = o.id and c.used_at is null and c.expires_at > pabal.now()
    returning c.account_id
),
session as materialized (
    select s.id
    from public.relay_sessions s
    where s.code = :code and s.used_at is null and s.revoked_at is null and s.expires_at > pabal.now()
    for no key update
),
created as (
    insert into public.accounts (id, openclaw_user_id, rate_limit_per_minute)
    select :account, 'session:' || s.id, :rate_limit from session s
    returning id
),
used as (
    update public.relay_sessions s
    set used_at = pabal.now(), used_by = :conversation, account_id = m.id
    from session w, created m
    where s.id = w.id
    returning s.account_id
)
select account_id from generated
union all
select account_id from used;

-- name: is_pairing_code_live
select exists (select from public.pairing_codes where code = :code and used_at is null and expires_at > pabal.now())
    or exists (
        select from public.relay_sessions
        where code = :code and used_at is null and revoked_at is null and expires_at > pabal.now()
    );

-- name: is_redeemed_by_conversation
-- The same user sent the same code again and is still connected: the first answer was lost, or the user is impatient.
select true
from public.accounts a
where a.id = :account and a.disabled_at is null
  and (
      exists (select from public.pairing_codes c where c.code = :code and c.used_by = :conversation and c.account_id = :account)
      or exists (select from public.relay_sessions s where s.code = :code and s.used_by = :conversation and s.account_id = :account)
  );

-- name: connect_conversation
update public.conversation_mappings
set account_id = :account, state = :state, paired_at = null, pending_at = null
where conversation_key = :conversation
returning conversation_key, plusfriend_user_key, account_id, state, paired_at, last_seen_at, blocked_by;

-- name: record_wrong_code
-- The window begins with the first wrong code. The end of a lockout ends its window too.
insert into public.pairing_failures as f (conversation_key)
values (:conversation)
on conflict (conversation_key) do update
set failures = case when f.since > pabal.now() - :window::interval and f.locked_until is null then f.failures + 1 else 1 end,
    since = case when f.since > pabal.now() - :window::interval and f.locked_until is null then f.since else pabal.now() end,
    locked_until = case
        when f.since > pabal.now() - :window::interval and f.locked_until is null and f.failures + 1 >= :max_failures
        then pabal.now() + :lock::interval
    end;

-- name: purge_wrong_codes
-- A wrong code that is recorded concurrently begins a new window; its row is locked and skipped.
delete from public.pairing_failures
where conversation_key in (
    select conversation_key from public.pairing_failures
    where since < pabal.now() - :window::interval and (locked_until is null or locked_until < pabal.now())
    limit :batch
    for update skip locked
);
