-- Tokens that begin with adopted: are another issuer's, kept as history when the database was adopted. No key decrypts them.

-- name: count_envelopes
-- key_id is null for values that are not envelopes.
select case when starts_with(envelope, 'v1.') then split_part(envelope, '.', 2) end as key_id, count(*) as count
from (
    select access_token as envelope from public.service_tokens
    union all
    select refresh_token from public.refresh_tokens
    union all
    select secret from pabal.subscriptions
    union all
    select previous_secret from pabal.subscriptions
    union all
    select data_key from pabal.relay_keys
) as envelopes
where envelope is not null and not starts_with(envelope, 'adopted:')
group by 1;

-- name: outdated_access_tokens
select id, access_token as envelope
from public.service_tokens
where id > :after and not starts_with(access_token, :prefix) and not starts_with(access_token, 'adopted:')
order by id
limit :batch;

-- name: update_access_tokens
-- Updates only cells that are unchanged since they were read, and skips locked rows, so that it neither overwrites a
-- newer value nor deadlocks.
with unlocked as (
    select t.id, n.envelope
    from unnest(:ids::uuid[], :previous::text[], :envelopes::text[]) as n (id, previous, envelope)
        join public.service_tokens t on t.id = n.id
    where t.access_token = n.previous
    for no key update of t skip locked
)
update public.service_tokens t
set access_token = unlocked.envelope, updated_at = pabal.now()
from unlocked
where t.id = unlocked.id;

-- name: outdated_refresh_tokens
select id, refresh_token as envelope
from public.refresh_tokens
where id > :after and not starts_with(refresh_token, :prefix) and not starts_with(refresh_token, 'adopted:')
order by id
limit :batch;

-- name: update_refresh_tokens
-- See update_access_tokens.
with unlocked as (
    select t.id, n.envelope
    from unnest(:ids::uuid[], :previous::text[], :envelopes::text[]) as n (id, previous, envelope)
        join public.refresh_tokens t on t.id = n.id
    where t.refresh_token = n.previous
    for no key update of t skip locked
)
update public.refresh_tokens t
set refresh_token = unlocked.envelope, updated_at = pabal.now()
from unlocked
where t.id = unlocked.id;

-- name: outdated_secrets
select id, secret as envelope
from pabal.subscriptions
where id > :after and not starts_with(secret, :prefix)
order by id
limit :batch;

-- name: update_secrets
-- See update_access_tokens.
with unlocked as (
    select t.id, n.envelope
    from unnest(:ids::uuid[], :previous::text[], :envelopes::text[]) as n (id, previous, envelope)
        join pabal.subscriptions t on t.id = n.id
    where t.secret = n.previous
    for no key update of t skip locked
)
update pabal.subscriptions t
set secret = unlocked.envelope, updated_at = pabal.now()
from unlocked
where t.id = unlocked.id;

-- name: outdated_previous_secrets
select id, previous_secret as envelope
from pabal.subscriptions
where id > :after and not starts_with(previous_secret, :prefix)
order by id
limit :batch;

-- name: update_previous_secrets
-- See update_access_tokens.
with unlocked as (
    select t.id, n.envelope
    from unnest(:ids::uuid[], :previous::text[], :envelopes::text[]) as n (id, previous, envelope)
        join pabal.subscriptions t on t.id = n.id
    where t.previous_secret = n.previous
    for no key update of t skip locked
)
update pabal.subscriptions t
set previous_secret = unlocked.envelope, updated_at = pabal.now()
from unlocked
where t.id = unlocked.id;

-- name: outdated_data_keys
select id, data_key as envelope
from pabal.relay_keys
where id > :after and not starts_with(data_key, :prefix)
order by id
limit :batch;

-- name: update_data_keys
-- See update_access_tokens.
with unlocked as (
    select t.id, n.envelope
    from unnest(:ids::uuid[], :previous::text[], :envelopes::text[]) as n (id, previous, envelope)
        join pabal.relay_keys t on t.id = n.id
    where t.data_key = n.previous
    for no key update of t skip locked
)
update pabal.relay_keys t
set data_key = unlocked.envelope
from unlocked
where t.id = unlocked.id;

-- name: database_clock
select pabal.now();

-- name: old_key_usage
select pabal.now() - :old_since::timestamptz as age,
       (select count(*) from pabal.audit_seals where key_id = :id) as seal_count;

-- name: database_uses_keys
-- A hub that lost its keys must not silently generate new ones.
select exists (select from public.service_tokens where not starts_with(access_token, 'adopted:')) or exists (select from pabal.audit_seals)
    or exists (select from pabal.subscriptions where secret is not null) or exists (select from pabal.relay_keys);
