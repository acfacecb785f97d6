-- name: conflict_conversation_keys
-- The key of a conversation is its channel, a colon and its user.
select count(*), min(m.conversation_key)
from existing.conversation_mappings m
where m.conversation_key <> m.kakao_channel_id || ':' || m.plusfriend_user_key;

-- name: conflict_states
-- The states of conversations are UNPAIRED, PENDING, PAIRED and BLOCKED.
select count(*), min(m.state)
from existing.conversation_mappings m
where m.state not in ('UNPAIRED', 'PENDING', 'PAIRED', 'BLOCKED');

-- name: conflict_message_keys
-- The conversation of a message is a channel, a colon and a user.
select count(*), min(m.conversation_key) from existing.inbound_messages m where m.conversation_key not like '%:%';

-- name: conflict_statuses
-- The statuses of messages are QUEUED, DELIVERED, ACKED and EXPIRED.
select count(*), min(m.status)
from existing.inbound_messages m
where m.status not in ('QUEUED', 'DELIVERED', 'ACKED', 'EXPIRED');

-- name: rule_token_hashes
-- Accounts whose relay token hash is no SHA-256, or is that of another account too, have no relay token until one is rotated in.
select count(*)
from (
  select a.relay_token_hash !~ '^[0-9a-fA-F]{64}$' or count(*) over (partition by lower(a.relay_token_hash)) > 1 as is_unusable
  from existing.accounts a
) a
where a.is_unusable;

-- name: rule_upper_case_hashes
-- Relay token hashes get lower case digits.
select count(*)
from (
  select a.relay_token_hash ~ '^[0-9a-fA-F]{64}$' and a.relay_token_hash <> lower(a.relay_token_hash)
         and count(*) over (partition by lower(a.relay_token_hash)) = 1 as is_changed
  from existing.accounts a
) a
where a.is_changed;

-- name: rule_rate_limits
-- A rate limit below 1 becomes the specification's default of 60.
select count(*) from existing.accounts a where a.rate_limit_per_minute < 1;

-- name: rule_without_account
-- Conversations that are PAIRED or PENDING without an account become UNPAIRED.
select count(*) from existing.conversation_mappings m where m.state in ('PAIRED', 'PENDING') and m.account_id is null;

-- name: rule_unpaired_accounts
-- UNPAIRED conversations lose their account and the time of their pairing.
select count(*)
from existing.conversation_mappings m
where m.state = 'UNPAIRED' and (m.account_id is not null or m.paired_at is not null);

-- name: rule_missing_times
-- PAIRED conversations without the time of their pairing get the time they were last seen.
select count(*)
from existing.conversation_mappings m
where m.state = 'PAIRED' and m.account_id is not null and m.paired_at is null;

-- name: rule_blocked
-- BLOCKED conversations were blocked by an operator when they were last seen.
select count(*) from existing.conversation_mappings m where m.state = 'BLOCKED';

-- name: rule_event_ids
-- Messages without source_event_id get one made from their id.
select count(*) from existing.inbound_messages m where m.source_event_id is null;

-- name: rule_delivered
-- DELIVERED messages have no lease: they are held for 60 seconds after delivered_at, and are then due again until they expire.
select count(*) from existing.inbound_messages m where m.status = 'DELIVERED';

-- name: rule_acked_times
-- ACKED messages without a time get that of their delivery or creation; messages that are not ACKED lose it.
select count(*) from existing.inbound_messages m where (m.status = 'ACKED') <> (m.acked_at is not null);

-- name: rule_used_codes
-- Pairing codes that were used at an unknown time were used when they were created.
select count(*) from existing.pairing_codes c where c.used_by is not null and c.used_at is null;

-- name: copy_accounts
insert into public.accounts (id, openclaw_user_id, relay_token_hash, rate_limit_per_minute, created_at, disabled_at)
select a.id, a.openclaw_user_id,
       case when a.relay_token_hash ~ '^[0-9a-fA-F]{64}$' and count(*) over (partition by lower(a.relay_token_hash)) = 1
            then lower(a.relay_token_hash) else 'none:' || gen_random_uuid() end,
       case when a.rate_limit_per_minute < 1 then 60 else a.rate_limit_per_minute end, a.created_at, a.disabled_at
from existing.accounts a;

-- name: copy_conversations
insert into public.conversation_mappings (
  conversation_key, kakao_channel_id, plusfriend_user_key, account_id, state, last_callback_url, last_callback_url_expires_at,
  first_seen_at, last_seen_at, paired_at, pending_at, blocked_at, blocked_by
)
select m.conversation_key, m.kakao_channel_id, m.plusfriend_user_key, case when m.state <> 'UNPAIRED' then m.account_id end,
       m.state, m.last_callback_url, m.last_callback_url_expires_at, m.first_seen_at, m.last_seen_at,
       case m.state when 'PAIRED' then coalesce(m.paired_at, m.seen_at) when 'BLOCKED' then m.paired_at end,
       case when m.state = 'PENDING' then m.seen_at end,
       case when m.state = 'BLOCKED' then m.seen_at end,
       case when m.state = 'BLOCKED' then 'operator' end
from (
  select c.conversation_key, c.kakao_channel_id, c.plusfriend_user_key, c.account_id, c.last_callback_url,
         c.last_callback_url_expires_at, c.first_seen_at, c.last_seen_at, c.paired_at,
         case when c.state in ('PAIRED', 'PENDING') and c.account_id is null then 'UNPAIRED' else c.state end as state,
         coalesce(c.last_seen_at, c.first_seen_at, pabal.now()) as seen_at
  from existing.conversation_mappings c
) m;

-- name: copy_messages
-- In the order of arrival: seq follows it.
insert into public.inbound_messages (
  id, account_id, conversation_key, kakao_payload, normalized, callback_url, callback_expires_at, status, source_event_id,
  created_at, delivered_at, acked_at, expires_at, lease, leased_until, delivery_count, ended_at, reason
)
select m.id, m.account_id, m.conversation_key, m.kakao_payload, m.normalized, m.callback_url, m.callback_expires_at, m.status,
       coalesce(m.source_event_id, 'adopted:' || m.id), m.created_at,
       case when m.status = 'DELIVERED' then m.delivery_time else m.delivered_at end,
       case when m.status = 'ACKED' then coalesce(m.acked_at, m.delivery_time) end,
       m.arrived_at + interval '15 minutes',
       case when m.status = 'DELIVERED' then gen_random_uuid() end,
       case when m.status = 'DELIVERED' then m.delivery_time + interval '60 seconds' end,
       case when m.delivered_at is not null or m.status in ('DELIVERED', 'ACKED') then 1 else 0 end,
       case m.status when 'ACKED' then coalesce(m.acked_at, m.delivery_time) when 'EXPIRED' then m.arrived_at + interval '15 minutes' end,
       case m.status when 'ACKED' then 'acked' when 'EXPIRED' then 'queue_life' end
from (
  select i.*, coalesce(i.created_at, pabal.now()) as arrived_at,
         coalesce(i.delivered_at, i.created_at, pabal.now()) as delivery_time
  from existing.inbound_messages i
) m
order by m.arrived_at, m.id;

-- name: copy_codes
insert into public.pairing_codes (code, account_id, expires_at, used_at, used_by, metadata, created_at)
select c.code, c.account_id, c.expires_at,
       case when c.used_by is not null then coalesce(c.used_at, c.created_at, pabal.now()) else c.used_at end,
       c.used_by, c.metadata, c.created_at
from existing.pairing_codes c;
