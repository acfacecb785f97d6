-- name: create_account
insert into public.accounts (id, openclaw_user_id, relay_token_hash, rate_limit_per_minute)
values (:id, :name, :token_hash, :rate_limit)
on conflict (openclaw_user_id) do nothing
returning id, openclaw_user_id, coalesce(rate_limit_per_minute, 600) as rate_limit_per_minute, answer_mode, true as has_token, created_at, disabled_at;

-- name: set_account_rate_limit
update public.accounts
set rate_limit_per_minute = :rate_limit
where id = :account
returning id, openclaw_user_id, coalesce(rate_limit_per_minute, 600) as rate_limit_per_minute, answer_mode,
          relay_token_hash not like 'none:%' as has_token, created_at, disabled_at;

-- name: set_account_answer_mode
update public.accounts
set answer_mode = :answer_mode
where id = :account
returning id, openclaw_user_id, coalesce(rate_limit_per_minute, 600) as rate_limit_per_minute, answer_mode,
          relay_token_hash not like 'none:%' as has_token, created_at, disabled_at;

-- name: rename_account
update public.accounts
set openclaw_user_id = :name
where id = :account
returning id, openclaw_user_id, coalesce(rate_limit_per_minute, 600) as rate_limit_per_minute, answer_mode,
          relay_token_hash not like 'none:%' as has_token, created_at, disabled_at;

-- name: find_account
select id, openclaw_user_id, coalesce(rate_limit_per_minute, 600) as rate_limit_per_minute, answer_mode,
       relay_token_hash not like 'none:%' as has_token, created_at, disabled_at
from public.accounts
where id = :account or openclaw_user_id = :name;

-- name: list_accounts
select id, openclaw_user_id, coalesce(rate_limit_per_minute, 600) as rate_limit_per_minute, answer_mode,
       relay_token_hash not like 'none:%' as has_token, created_at, disabled_at
from public.accounts
where :after::timestamptz is null or (created_at, id) > (:after, :after_id::uuid)
order by created_at, id
limit :limit;

-- name: count_account_contents
select count(*) filter (where c.state = 'PAIRED') as paired,
       count(*) filter (where c.state = 'PENDING') as pending,
       count(*) filter (where c.state = 'BLOCKED') as blocked,
       (select count(*) from public.pairing_codes p
        where p.account_id = :account and p.used_at is null and p.expires_at > pabal.now()) as live_codes,
       (select count(*) from public.relay_sessions s where s.account_id = :account and s.revoked_at is null) as sessions,
       (select count(*) from public.inbound_messages m
        where m.account_id = :account and m.status in ('QUEUED', 'DELIVERED')) as open_messages
from public.conversation_mappings c
where c.account_id = :account;

-- name: disable_account
update public.accounts
set disabled_at = pabal.now()
where id = :account and disabled_at is null
returning id, openclaw_user_id, coalesce(rate_limit_per_minute, 600) as rate_limit_per_minute, answer_mode,
          relay_token_hash not like 'none:%' as has_token, created_at, disabled_at;

-- name: enable_account
update public.accounts
set disabled_at = null
where id = :account and disabled_at is not null
returning id, openclaw_user_id, coalesce(rate_limit_per_minute, 600) as rate_limit_per_minute, answer_mode,
          relay_token_hash not like 'none:%' as has_token, created_at, disabled_at;

-- name: delete_unused_codes
delete from public.pairing_codes where account_id = :account and used_at is null;

-- name: rotate_relay_token
update public.accounts set relay_token_hash = :token_hash where id = :account;

-- name: revoke_sessions
update public.relay_sessions set revoked_at = pabal.now() where account_id = :account and revoked_at is null;

-- name: lock_conversations
select conversation_key from public.conversation_mappings
where account_id = :account
order by conversation_key
for no key update;

-- name: lock_account
select id, openclaw_user_id, coalesce(rate_limit_per_minute, 600) as rate_limit_per_minute, answer_mode,
       relay_token_hash not like 'none:%' as has_token, created_at, disabled_at
from public.accounts
where id = :account
for no key update;

-- name: delete_messages
-- Before the account itself: replying locks the message first and the account after it.
with mine as (
    select id from public.inbound_messages
    where account_id = :account
    order by id
    for update
)
delete from public.inbound_messages m using mine where m.id = mine.id and m.account_id = :account;

-- name: delete_account
delete from public.accounts where id = :account;

-- name: purge_unused_accounts
-- Only accounts that a session created and no operator has changed: a named or disabled one, or one with a relay token, is in use.
-- An account that polls has a rate limit row.
delete from public.accounts
where id in (
    select a.id
    from public.accounts a
    where a.openclaw_user_id like 'session:%' and a.relay_token_hash like 'none:%' and a.disabled_at is null
      and not exists (select from public.conversation_mappings c where c.account_id = a.id)
      and not exists (select from public.inbound_messages m where m.account_id = a.id)
      and not exists (
          select from public.pairing_codes c where c.account_id = a.id and c.used_at is null and c.expires_at > pabal.now()
      )
      and not exists (select from public.relay_streams t where t.account_id = a.id and t.alive_until > pabal.now())
      and not pabal.has_limit('relay requests:' || a.id)
      and not exists (
          select from public.relay_sessions s
          where s.account_id = a.id
            and greatest(s.used_at, s.disconnected_at, s.last_seen_at, s.revoked_at)
                > pabal.now() - case when s.paired_at is null and s.revoked_at is not null then :unpaired_keep::interval else :keep::interval end
      )
    limit :batch
    for update skip locked
)
returning id, openclaw_user_id;

-- name: list_account_summaries
-- Counts only for the accounts of one page, each by its own index and up to a maximum.
select a.id, a.openclaw_user_id, coalesce(a.rate_limit_per_minute, 600) as rate_limit_per_minute, a.created_at, a.disabled_at,
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
                select from public.conversation_mappings c where c.account_id = a.id and c.state = 'PAIRED' limit :max_count
            ) capped
        ) as paired,
        (
            select count(*) from (
                select from public.conversation_mappings c where c.account_id = a.id and c.state = 'PENDING' limit :max_count
            ) capped
        ) as pending,
        (
            select count(*) from (
                select from public.conversation_mappings c where c.account_id = a.id and c.state = 'BLOCKED' limit :max_count
            ) capped
        ) as blocked,
        (
            select count(*) from (
                select from public.inbound_messages m
                where m.account_id = a.id and m.status in ('QUEUED', 'DELIVERED')
                limit :max_count
            ) capped
        ) as open_messages,
        (select count(*) from public.relay_sessions s where s.account_id = a.id and s.revoked_at is null) as sessions,
        (
            select count(*) from public.relay_streams s
            where s.account_id = a.id and s.parked_at is null and s.alive_until > pabal.now()
        ) as streams
) counted
order by a.created_at desc, a.id desc;

-- name: list_live_pairing_codes
select c.code, c.expires_at - pabal.now() as expires_in, c.metadata
from public.pairing_codes c
where c.account_id = :account and c.used_at is null and c.expires_at > pabal.now()
order by c.expires_at, c.code;

-- name: find_account_names
select a.id, a.openclaw_user_id from public.accounts a where a.id = any(:accounts::uuid[]);

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
