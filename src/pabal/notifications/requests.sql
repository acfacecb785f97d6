-- name: database_now
select pabal.now();

-- name: list_known_guilds
select id from guild.guilds where id = any(:ids::uuid[]);

-- name: insert_request
-- The seed's InsertRequest, for many at once. Rows whose key was used before are skipped; list_existing_requests finds the
-- first one, after a concurrent transaction has committed it. Ordered by key, so that two inserts of the same keys cannot
-- deadlock.
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
-- For each skipped row: the first notification with its key, and whether the content is the same. A repeated dedupe key
-- counts as the same content.
select b.id as draft_id, r.id, r.state, r.reason, r.scheduled_at, r.created_at,
       coalesce(k.id is null or k.content_hash is not distinct from b.hash, false) as is_same_content
from unnest(:ids::uuid[], :sources::text[], :keys::text[], :hashes::bytea[], :dedupe_keys::text[])
    as b (id, source, key, hash, dedupe_key)
left join notification.requests k on k.source_service = b.source and k.idempotency_key = b.key
left join notification.requests d on d.dedupe_key = b.dedupe_key
left join notification.requests r on r.id = coalesce(k.id, d.id);

-- name: cancel_request
-- Not while a worker holds it: it may be delivered already.
update notification.requests r
set state = 'suppressed', reason = 'cancelled', ended_at = pabal.now(), lease = null, leased_until = null
where r.id = :id and (:all::boolean or r.source_service = :service)
  and r.state = 'pending' and (r.lease is null or r.leased_until <= pabal.now());
