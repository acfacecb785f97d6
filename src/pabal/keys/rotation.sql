-- name: count_envelopes
-- How many lie under each key; none at all is named where something else than an envelope is kept.
select case when starts_with(envelope, 'v1.') then split_part(envelope, '.', 2) end as key_id, count(*) as count
from (
    select access_token as envelope from public.service_tokens
    union all
    select refresh_token from public.refresh_tokens
    union all
    select secret from pabal.subscriptions
    union all
    select previous_secret from pabal.subscriptions
) as every
where envelope is not null
group by 1;

-- name: outdated_access_tokens
select id, access_token as envelope
from public.service_tokens
where id > :after and not starts_with(access_token, :mark)
order by id
limit :batch;

-- name: update_access_tokens
-- Only where the cell holds what was read, and never behind somebody's lock: so nothing newer is overwritten, and nobody
-- who holds several rows can be waiting for us while we wait for them.
with free as (
    select t.id, n.envelope
    from unnest(:ids::uuid[], :were::text[], :envelopes::text[]) as n (id, was, envelope)
        join public.service_tokens t on t.id = n.id
    where t.access_token = n.was
    for no key update of t skip locked
)
update public.service_tokens t
set access_token = free.envelope, updated_at = pabal.now()
from free
where t.id = free.id;

-- name: outdated_refresh_tokens
select id, refresh_token as envelope
from public.refresh_tokens
where id > :after and not starts_with(refresh_token, :mark)
order by id
limit :batch;

-- name: update_refresh_tokens
-- As for access tokens.
with free as (
    select t.id, n.envelope
    from unnest(:ids::uuid[], :were::text[], :envelopes::text[]) as n (id, was, envelope)
        join public.refresh_tokens t on t.id = n.id
    where t.refresh_token = n.was
    for no key update of t skip locked
)
update public.refresh_tokens t
set refresh_token = free.envelope, updated_at = pabal.now()
from free
where t.id = free.id;

-- name: outdated_secrets
select id, secret as envelope
from pabal.subscriptions
where id > :after and not starts_with(secret, :mark)
order by id
limit :batch;

-- name: update_secrets
-- As for access tokens.
with free as (
    select t.id, n.envelope
    from unnest(:ids::uuid[], :were::text[], :envelopes::text[]) as n (id, was, envelope)
        join pabal.subscriptions t on t.id = n.id
    where t.secret = n.was
    for no key update of t skip locked
)
update pabal.subscriptions t
set secret = free.envelope, updated_at = pabal.now()
from free
where t.id = free.id;

-- name: outdated_previous_secrets
select id, previous_secret as envelope
from pabal.subscriptions
where id > :after and not starts_with(previous_secret, :mark)
order by id
limit :batch;

-- name: update_previous_secrets
-- As for access tokens.
with free as (
    select t.id, n.envelope
    from unnest(:ids::uuid[], :were::text[], :envelopes::text[]) as n (id, was, envelope)
        join pabal.subscriptions t on t.id = n.id
    where t.previous_secret = n.was
    for no key update of t skip locked
)
update pabal.subscriptions t
set previous_secret = free.envelope, updated_at = pabal.now()
from free
where t.id = free.id;

-- name: database_clock
select pabal.now();

-- name: old_key_usage
select pabal.now() - :left_at::timestamptz as age,
       (select count(*) from pabal.audit_seals where key_id = :id) as seal_count;

-- name: database_uses_keys
-- Whether anything in this database was made with keys: a hub that lost them must not make others in silence.
select exists (select from public.service_tokens) or exists (select from pabal.audit_seals)
    or exists (select from pabal.subscriptions where secret is not null);
