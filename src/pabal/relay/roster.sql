-- name: list_account_summaries
-- For an operator, or one for its owner. What each has is counted for one page of them, each by its own index, and only so far.
select a.id, a.openclaw_user_id, coalesce(a.rate_limit_per_minute, 60) as rate_limit_per_minute, a.created_at, a.disabled_at,
       counted.paired, counted.pending, counted.blocked, counted.open_messages, counted.sessions, counted.streams
from (
    select *
    from public.accounts
    where (:before::timestamptz is null or (created_at, id) < (:before, :before_id::uuid))
      and (:name::text is null or starts_with(openclaw_user_id, :name))
      and (:account::uuid is null or id = :account)
    order by created_at desc, id desc
    limit :limit
) a
cross join lateral (
    select
        (
            select count(*) from (
                select from public.conversation_mappings c where c.account_id = a.id and c.state = 'PAIRED' limit :most
            ) few
        ) as paired,
        (
            select count(*) from (
                select from public.conversation_mappings c where c.account_id = a.id and c.state = 'PENDING' limit :most
            ) few
        ) as pending,
        (
            select count(*) from (
                select from public.conversation_mappings c where c.account_id = a.id and c.state = 'BLOCKED' limit :most
            ) few
        ) as blocked,
        (
            select count(*) from (
                select from public.inbound_messages m
                where m.account_id = a.id and m.status in ('QUEUED', 'DELIVERED')
                limit :most
            ) few
        ) as open_messages,
        (select count(*) from public.relay_sessions s where s.account_id = a.id and s.revoked_at is null) as sessions,
        (select count(*) from public.relay_streams s where s.account_id = a.id and s.alive_until > pabal.now()) as streams
) counted
order by a.created_at desc, a.id desc;

-- name: list_live_pairing_codes
select c.code, c.expires_at - pabal.now() as expires_in, c.metadata
from public.pairing_codes c
where c.account_id = :account and c.used_at is null and c.expires_at > pabal.now()
order by c.expires_at, c.code;

-- name: find_account_names
select a.id, a.openclaw_user_id from public.accounts a where a.id = any(:accounts::uuid[]);

-- name: lock_account_conversations
select conversation_key from public.conversation_mappings
where account_id = :account
order by conversation_key
for no key update;

-- name: lock_existing_account
select true from public.accounts where id = :account for no key update;

-- name: measure_deletion_impact
select
    (
        select count(*) from public.inbound_messages m
        where m.account_id = :account and m.status in ('QUEUED', 'DELIVERED')
    ) as open_messages,
    (select count(*) from public.pairing_codes c where c.account_id = :account and c.used_at is null) as codes,
    (select count(*) from public.relay_sessions s where s.account_id = :account and s.revoked_at is null) as sessions,
    (select count(*) from public.inbound_messages m where m.account_id = :account) as messages,
    (select count(*) from public.conversation_mappings c where c.account_id = :account) as conversations;
