-- name: receive_messages
-- One statement for a batch of webhooks. It applies the rate limits, creates or touches the conversations, and queues
-- the messages of paired ones. The conversation's row is locked before its messages get their seq, so within a
-- conversation seq is in commit order; messages of one batch get it in order of arrival. The first message of a user
-- takes from two limits, of the hub and of the channel; beyond them nothing is stored, not even a row of the other
-- limits, so made-up users and channels cost no disk. A conversation that another transaction has locked is left out
-- before anything else is locked, so that only its own webhook waits and not the whole channel.
-- A message with a stream is handed to it: leased at once, so that no claim is needed. Not to a parked stream, not if
-- messages of the account are queued, and not if another holder has messages of the conversation or a lease has ended:
-- the claim then decides on the order. Messages of one conversation name the same stream, and none after one without a
-- stream names any. If the conversation's row changed since our snapshot, we may not see its last message.
-- Given a prefix, a queued message that another process waits for notifies it at the commit. A full queue of
-- notifications would fail the commit, so it is left to a statement of its own then.
with unlocked as materialized (
    select c.conversation_key, c.ctid as version
    from public.conversation_mappings c
    where c.conversation_key = any(:keys::text[])
    order by c.conversation_key
    for no key update skip locked
),
arrived as materialized (
    select a.*, a.id is not null as is_message, u.conversation_key is null as is_new, u.version
    from unnest(
        :positions::integer[], :keys::text[], :channels::text[], :users::text[], :source_events::text[], :payloads::text[],
        :normalized::text[], :callbacks::text[], :ids::uuid[], :streams::uuid[], :holders::text[],
        :auto_holds::interval[], :holds::interval[], :key_accounts::uuid[]
    ) as a (
        position, conversation_key, channel_id, user_key, source_event_id, payload, normalized, callback_url, id, stream_id, holder,
        auto_hold, hold, key_account
    )
    left join unlocked u on u.conversation_key = a.conversation_key
    where u.conversation_key is not null
       or not exists (select from public.conversation_mappings c where c.conversation_key = a.conversation_key)
    order by a.conversation_key, a.position
),
new_conversations as materialized (
    select a.conversation_key, a.channel_id, min(a.position) as position
    from arrived a
    where a.is_new
    group by a.conversation_key, a.channel_id
),
hub_limit as materialized (
    select pabal.take_limit('new conversations:hub', interval '1 hour' / :new_per_hub, interval '1 hour', count(*)::integer) as allowed
    from new_conversations
    having count(*) > 0
),
new_in_hub as materialized (
    select n.conversation_key, n.channel_id, n.position
    from (select n.*, row_number() over (order by n.position) as nth from new_conversations n) n
    join hub_limit h on n.nth <= h.allowed
),
new_channel_limits as materialized (
    select n.channel_id, pabal.take_limit(
        'new conversations of channel:' || n.channel_id, interval '1 hour' / :new_per_channel, interval '1 hour', count(*)::integer
    ) as allowed
    from (select * from new_in_hub order by channel_id) n
    group by n.channel_id
),
storable as materialized (
    select a.position, a.conversation_key, a.channel_id,
           row_number() over (partition by a.conversation_key order by a.position) as nth
    from arrived a
    where not a.is_new or a.conversation_key in (
        select n.conversation_key
        from (select n.*, row_number() over (partition by n.channel_id order by n.position) as nth from new_in_hub n) n
        join new_channel_limits c on c.channel_id = n.channel_id and n.nth <= c.allowed
    )
),
allowed_per_conversation as materialized (
    select s.conversation_key,
           case when :per_conversation = 0 then s.wanted else pabal.take_limit(
               'webhook conversation:' || s.conversation_key, interval '1 minute' / nullif(:per_conversation, 0), interval '1 minute',
               s.wanted
           ) end as allowed
    from (
        select s.conversation_key, count(*)::integer as wanted from storable s group by s.conversation_key order by s.conversation_key
    ) s
),
conversation_limits as materialized (
    select s.position, s.channel_id, s.nth <= l.allowed as within_conversation_limit
    from storable s
    join allowed_per_conversation l on l.conversation_key = s.conversation_key
),
channel_limits as materialized (
    select c.channel_id,
           case when :per_channel = 0 then count(*) else pabal.take_limit(
               'webhook channel:' || c.channel_id, interval '1 minute' / nullif(:per_channel, 0), interval '1 minute', count(*)::integer
           ) end as allowed
    from (select * from conversation_limits where within_conversation_limit order by channel_id) c
    group by c.channel_id
),
admitted as materialized (
    select c.position
    from (
        select c.position, c.channel_id, row_number() over (partition by c.channel_id order by c.position) as nth
        from conversation_limits c
        where c.within_conversation_limit
    ) c
    join channel_limits h on h.channel_id = c.channel_id and c.nth <= h.allowed
),
seen as (
    insert into public.conversation_mappings as c
        (conversation_key, kakao_channel_id, plusfriend_user_key, last_callback_url, last_callback_url_expires_at)
    select distinct on (a.conversation_key) a.conversation_key, a.channel_id, a.user_key, a.callback_url,
           case when a.callback_url is not null then pabal.now() + :callback_life::interval end
    from arrived a
    join admitted l on l.position = a.position
    order by a.conversation_key, a.position desc
    on conflict (conversation_key) do update
    set last_seen_at = pabal.now(),
        last_callback_url = excluded.last_callback_url,
        last_callback_url_expires_at = excluded.last_callback_url_expires_at
    returning conversation_key, state, account_id
),
-- The shared lock orders us against disabling an account. An account that this snapshot cannot see yet is new and enabled.
owners as materialized (
    select s.conversation_key, coalesce(o.is_disabled, false) as is_disabled, coalesce(o.answer_mode, 'auto') as answer_mode
    from seen s
    left join lateral (
        select a.disabled_at is not null as is_disabled, a.answer_mode from public.accounts a where a.id = s.account_id for share
    ) o on true
),
-- The webhooks to hold open for their answers. A bot that is not connected does not answer in time.
held as materialized (
    select a.position, case when o.answer_mode = 'synchronous' then a.hold else a.auto_hold end as hold
    from arrived a
    join seen s on s.conversation_key = a.conversation_key
    join owners o on o.conversation_key = s.conversation_key
    where a.is_message and case o.answer_mode
        when 'synchronous' then a.hold is not null
        when 'auto' then a.auto_hold is not null and (
            exists (select from public.relay_streams t where t.account_id = s.account_id and t.alive_until > pabal.now())
            or pabal.limit_used_within('relay requests:' || s.account_id, :poll_span::interval)
        )
        else false
    end
),
handed_over as materialized (
    select a.position, t.account_id, a.holder
    from arrived a
    join public.relay_streams t on t.id = a.stream_id and t.parked_at is null and t.alive_until > pabal.now()
    where exists (select from public.conversation_mappings c where c.conversation_key = a.conversation_key and c.ctid = a.version)
      and not exists (select from public.inbound_messages m where m.account_id = t.account_id and m.status = 'QUEUED')
      and not exists (
          select from public.inbound_messages h
          where h.conversation_key = a.conversation_key and h.status = 'DELIVERED'
            and (h.held_by is distinct from a.holder or h.leased_until <= pabal.now())
      )
),
put as (
    insert into public.inbound_messages (
        id, account_id, conversation_key, kakao_payload, normalized, callback_url, callback_expires_at, source_event_id, expires_at,
        status, lease, leased_until, held_by, delivery_seq, delivered_at, delivery_count, webhook_open_until
    )
    select a.id, s.account_id, a.conversation_key, a.payload::jsonb, a.normalized::jsonb,
           case when o.answer_mode <> 'held' then a.callback_url end,
           case when a.callback_url is not null and o.answer_mode <> 'held' then pabal.now() + :callback_life::interval end,
           a.source_event_id, pabal.now() + :queue_life::interval,
           case when h.position is null then 'QUEUED' else 'DELIVERED' end,
           case when h.position is not null then :lease::uuid end,
           case when h.position is not null then pabal.now() + :lease_life::interval end,
           h.holder,
           case when h.position is not null then nextval('public.inbound_messages_delivery_seq') end,
           case when h.position is not null then pabal.now() end,
           case when h.position is null then 0 else 1 end,
           pabal.now() + w.hold
    from arrived a
    join admitted l on l.position = a.position
    join seen s on s.conversation_key = a.conversation_key
    join owners o on o.conversation_key = s.conversation_key
    left join handed_over h on h.position = a.position and h.account_id = s.account_id
    left join held w on w.position = a.position
    where s.state = 'PAIRED' and a.is_message and not o.is_disabled
      and (not :is_encrypted::boolean or a.key_account = s.account_id)  -- encrypted for another account: tried again
    order by a.conversation_key, a.position
    on conflict (channel_id, source_event_id) do nothing
    returning id, account_id, conversation_key, delivery_seq, seq, created_at, callback_expires_at, webhook_open_until,
              case when delivery_seq is not null and not :is_encrypted::boolean then kakao_payload end as kakao_payload,
              case when delivery_seq is not null and not :is_encrypted::boolean then normalized end as normalized
),
emitted as materialized (
    select pabal.queue_message_events(array_agg(p.id)) as count
    from put p
)
select a.position, c.position is not null as within_new_limits, coalesce(c.within_conversation_limit, true) as within_conversation_limit,
       l.position is not null as within_channel_limit, s.state, s.account_id, coalesce(o.is_disabled, false) as is_disabled,
       p.id as message_id, e.id as duplicate_of, e.answer,
       coalesce(p.callback_expires_at, e.callback_expires_at) is not null as has_callback,
       case
           when p.id is not null then p.webhook_open_until - pabal.now()
           when e.webhook_open_until > pabal.now() or e.webhook_open_until is not null and exists (
               select from public.relay_replies r where r.message_id = e.id and r.in_webhook
           ) then e.webhook_open_until - pabal.now()
       end as hold,
       (select count from emitted) > 0 as event_queued,
       p.delivery_seq, p.seq, p.created_at, p.callback_expires_at, p.kakao_payload, p.normalized,
       q.has_remote_stream,
       case when :notify_prefix::text is not null and p.id is not null and p.delivery_seq is null
                and (:is_awaited or q.has_remote_stream) and pg_notification_queue_usage() < 0.5
           then pg_notify(:notify_channel, :notify_prefix::text || p.account_id) end::text is not null as is_notified
from arrived a
left join conversation_limits c on c.position = a.position
left join admitted l on l.position = a.position
left join seen s on s.conversation_key = a.conversation_key and l.position is not null
left join owners o on o.conversation_key = a.conversation_key
left join put p on p.id = a.id
left join lateral (
    select p.id is not null and p.delivery_seq is null and exists (
        select from public.relay_streams t
        where t.account_id = p.account_id and t.parked_at is null and t.alive_until > pabal.now()
          and t.process_id is distinct from :process::uuid
    ) as has_remote_stream
) q on true
left join public.inbound_messages e
    on e.channel_id = a.channel_id and e.source_event_id = a.source_event_id and a.is_message
   and e.conversation_key is not distinct from a.conversation_key;  -- keeps the planner off all messages of the conversation

-- name: queue_unclear
-- For all accounts: messages that a statement of this process leased to a stream without its answer arriving. Waits for no
-- lock: it runs before webhooks of all users.
update public.inbound_messages m
set status = 'QUEUED', lease = null, leased_until = null, held_by = null
from (
    select m.id
    from unnest(:ids::uuid[], :leases::uuid[]) as a (id, lease)
    join public.inbound_messages m on m.id = a.id and m.lease = a.lease
    order by m.id
    for no key update of m skip locked
) mine
where m.id = mine.id
returning m.account_id;

-- name: find_duplicate
-- For a message that was neither inserted nor visible: a concurrent transaction inserted it and has committed since.
select id as duplicate_of, answer, callback_url is not null as has_callback,
       case when webhook_open_until > pabal.now() then webhook_open_until - pabal.now() end as hold
from public.inbound_messages
where conversation_key is not distinct from :conversation_key and channel_id = :channel_id and source_event_id = :source_event_id;

-- name: save_first_response
-- Only for responses that a duplicate could not build again.
update public.inbound_messages
set answer = :answer
where id = :id and account_id = :account_id;
