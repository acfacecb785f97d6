-- name: database_now
select pabal.now();

-- name: list_known_guilds
select id from guild.guilds where id = any(:ids::uuid[]);

-- name: insert_request
-- The seed's InsertRequest, for however many are brought. One whose key was used before is left out without a word: `known`
-- asks about it afterwards, when whoever was quicker has committed. In the order of keys, so that two that bring the same
-- ones do not wait for each other in a circle.
insert into notification.requests (
    id, recipient_type, recipient_id, guild_id, template_key, payload, state, reason, ended_at, scheduled_at, priority,
    expires_at, locale, dedupe_key, incident, event_id, rule_id, source_service, requested_by, idempotency_key,
    content_hash, correlation_id, again_of, decision
)
select b.id, b.channel, b.recipient, b.guild, b.template, b.payload::jsonb,
       case when b.reason is null then 'pending' else 'suppressed' end, b.reason,
       case when b.reason is not null then pabal.now() end,
       coalesce(b.scheduled_at, pabal.now()), b.priority, b.expires_at, b.locale, b.dedupe_key, b.incident, b.event, b.rule,
       b.source, :by, b.key, b.hash, b.correlation_id, b.again_of, b.decision::jsonb
from unnest(
    :ids::uuid[], :channels::text[], :recipients::text[], :guilds::uuid[], :templates::text[], :payloads::text[],
    :priorities::smallint[], :reasons::text[], :scheduled_ats::timestamptz[], :expires_ats::timestamptz[], :locales::text[],
    :dedupe_keys::text[], :incidents::text[], :events::uuid[], :rules::uuid[], :sources::text[], :keys::text[],
    :hashes::bytea[], :correlation_ids::text[], :agains::uuid[], :decisions::text[]
) as b (
    id, channel, recipient, guild, template, payload, priority, reason, scheduled_at, expires_at, locale, dedupe_key,
    incident, event, rule, source, key, hash, correlation_id, again_of, decision
)
order by b.source, b.key, b.dedupe_key, b.id
on conflict do nothing
returning id, state, reason, scheduled_at, created_at;

-- name: list_existing_requests
-- What became of those that were left out: the first request of their key, and whether it says the same. One that repeats
-- another's dedupe key is the same by that alone.
select b.id as draft_id, r.id, r.state, r.reason, r.scheduled_at, r.created_at,
       coalesce(k.id is null or k.content_hash is not distinct from b.hash, false) as is_same_content
from unnest(:ids::uuid[], :sources::text[], :keys::text[], :hashes::bytea[], :dedupe_keys::text[])
    as b (id, source, key, hash, dedupe_key)
left join notification.requests k on k.source_service = b.source and k.idempotency_key = b.key
left join notification.requests d on d.dedupe_key = b.dedupe_key
left join notification.requests r on r.id = coalesce(k.id, d.id);

-- name: cancel_request
-- Not from under a holder: it may be at the receiver already, and the row would deny it.
update notification.requests r
set state = 'suppressed', reason = 'cancelled', ended_at = pabal.now(), lease = null, leased_until = null
where r.id = :id and (:all::boolean or r.source_service = :service)
  and r.state = 'pending' and (r.lease is null or r.leased_until <= pabal.now());
