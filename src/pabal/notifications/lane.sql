-- name: claim
-- The seed's FetchPendingRequests. Emergencies first, then by schedule; an emergency is claimed even after it expired.
-- A row whose lease has expired is due again. If it has no attempt left, it fails here. Its reason is 'unknown', because
-- the lost attempt may have been delivered; a toast cannot be, it is inserted when its notification is settled.
-- Updates by ctid, so that the plan does not depend on row estimates.
with picked as materialized (
    select r.id, r.row_ctid, r.lease, r.attempt_count, r.held_by, r.claimed_at
    from (
        select p, c from unnest(:priorities::smallint[]) p, unnest(:channels::text[]) c
        order by p, c
    ) w
    cross join lateral (
        select r.id, r.ctid as row_ctid, r.lease, r.attempt_count, r.held_by, r.claimed_at
        from notification.requests r
        where r.state = 'pending' and r.recipient_type = w.c and r.priority = w.p and r.scheduled_at <= pabal.now()
          and (r.lease is null or r.leased_until <= pabal.now())
          and (r.expires_at is null or r.expires_at > pabal.now() or w.p = 1)
        order by r.scheduled_at
        limit :limit
        for no key update skip locked
    ) r
    limit :limit
),
lost_attempts as (
    insert into notification.attempts (request_id, lease, attempt, worker, started_at, outcome, why)
    select p.id, p.lease, p.attempt_count, p.held_by, coalesce(p.claimed_at, pabal.now()), 'unknown', 'lease expired'
    from picked p
    where p.lease is not null
    on conflict do nothing
),
moved as (
    update notification.requests r
    set state = case when r.attempt_count >= 3 then 'failed' else 'pending' end,
        attempt_count = least(r.attempt_count + 1, 3),
        lease = case when r.attempt_count < 3 then :lease::uuid end,
        leased_until = case when r.attempt_count < 3 then pabal.now() + :hold::interval end,
        held_by = :holder,
        claimed_at = pabal.now(),
        last_error = case when r.attempt_count >= 3 then 'lease expired' else r.last_error end,
        reason = case
            when r.attempt_count < 3 then null
            when r.recipient_type = 'dashboard_toast' then 'exhausted'
            else 'unknown'
        end,
        ended_at = case when r.attempt_count >= 3 then pabal.now() end
    where r.ctid = any(array(select p.row_ctid from picked p))
    returning r.*
)
select id, lease, recipient_type, recipient_id, guild_id, template_key, payload, locale, nonce, event_id, priority,
       created_at, attempt_count as attempt, 3 as max_attempts, source_service
from moved
where state = 'pending';

-- name: lock
-- Lock all rows in id order before several statements settle them, to avoid deadlocks.
select a.id
from unnest(:ids::uuid[], :leases::uuid[]) as a (id, lease)
join notification.requests r on r.id = a.id and r.lease = a.lease
order by a.id
for no key update of r;

-- name: settle_done
-- The seed's MarkSent. Also records the attempt, with the channel's response.
with ended as (
    update notification.requests r
    set state = 'sent', sent_at = pabal.now(), ended_at = pabal.now(), lease = null, leased_until = null
    from (
        select a.* from unnest(:ids::uuid[], :leases::uuid[], :answers::jsonb[])
            as a (id, lease, answer)
        join notification.requests r on r.id = a.id and r.lease = a.lease
        order by a.id
        for no key update of r
    ) a
    where r.id = a.id
    returning r.id, a.lease, r.attempt_count, r.held_by, r.claimed_at, a.answer
),
attempt as (
    insert into notification.attempts (request_id, lease, attempt, worker, started_at, outcome, answer)
    select id, lease, attempt_count, held_by, coalesce(claimed_at, pabal.now()), 'done', answer
    from ended
)
select id from ended;

-- name: settle_retry
-- The seed's IncrementAttempt. The attempt was counted when the row was claimed; here the schedule moves.
with ended as (
    update notification.requests r
    set lease = null, leased_until = null, scheduled_at = pabal.now() + a.after, last_error = a.why
    from (
        select a.* from unnest(:ids::uuid[], :leases::uuid[], :delays::interval[], :errors::text[], :codes::text[], :stacks::text[])
            as a (id, lease, after, why, code, stack)
        join notification.requests r on r.id = a.id and r.lease = a.lease
        order by a.id
        for no key update of r
    ) a
    where r.id = a.id
    returning r.id, a.lease, r.attempt_count, r.held_by, r.claimed_at, a.why
),
attempt as (
    insert into notification.attempts (request_id, lease, attempt, worker, started_at, outcome, why)
    select id, lease, attempt_count, held_by, coalesce(claimed_at, pabal.now()), 'retry', why
    from ended
)
select id from ended;

-- name: settle_dead
-- The seed's MarkFailed.
with ended as (
    update notification.requests r
    set state = 'failed', lease = null, leased_until = null, last_error = a.why, ended_at = pabal.now(),
        reason = case
            when a.code in ('refused', 'unrenderable') then a.code
            when r.attempt_count >= 3 then 'exhausted'
            else 'refused'
        end
    from (
        select a.* from unnest(:ids::uuid[], :leases::uuid[], :errors::text[], :codes::text[], :stacks::text[])
            as a (id, lease, why, code, stack)
        join notification.requests r on r.id = a.id and r.lease = a.lease
        order by a.id
        for no key update of r
    ) a
    where r.id = a.id
    returning r.id, a.lease, r.attempt_count, r.held_by, r.claimed_at, a.why
),
attempt as (
    insert into notification.attempts (request_id, lease, attempt, worker, started_at, outcome, why)
    select id, lease, attempt_count, held_by, coalesce(claimed_at, pabal.now()), 'dead', why
    from ended
)
select id from ended;

-- name: settle_snooze
-- Delayed without counting the attempt, for example after a 429.
with ended as (
    update notification.requests r
    set lease = null, leased_until = null, scheduled_at = pabal.now() + a.after, last_error = a.why,
        attempt_count = greatest(r.attempt_count - 1, 0)
    from (
        select a.* from unnest(:ids::uuid[], :leases::uuid[], :delays::interval[], :reasons::text[])
            as a (id, lease, after, why)
        join notification.requests r on r.id = a.id and r.lease = a.lease
        order by a.id
        for no key update of r
    ) a
    where r.id = a.id
    returning r.id, a.lease, r.attempt_count, r.held_by, r.claimed_at, a.why
),
attempt as (
    insert into notification.attempts (request_id, lease, attempt, worker, started_at, outcome, why)
    select id, lease, attempt_count, held_by, coalesce(claimed_at, pabal.now()), 'snooze', why
    from ended
)
select id from ended;

-- name: extend
-- Skips locked rows: they are being settled, and another heartbeat comes before the lease ends. Returns the ids that are
-- no longer held.
with extended as (
    update notification.requests r
    set leased_until = pabal.now() + :hold::interval
    from (
        select a.id from unnest(:ids::uuid[], :leases::uuid[]) as a (id, lease)
        join notification.requests r on r.id = a.id and r.lease = a.lease
        for no key update of r skip locked
    ) held
    where r.id = held.id
)
select a.id
from unnest(:ids::uuid[], :leases::uuid[]) as a (id, lease)
left join notification.requests r on r.id = a.id and r.lease = a.lease
where r.id is null;

-- name: expire
-- Emergencies never expire, nor does a row that a worker holds.
update notification.requests r
set state = 'suppressed', reason = 'expired', ended_at = pabal.now(), lease = null, leased_until = null
from (
    select id from notification.requests
    where state = 'pending' and expires_at <= pabal.now() and priority <> 1
      and (lease is null or leased_until <= pabal.now())
    order by expires_at
    limit :batch
    for no key update skip locked
) late
where r.id = late.id;

-- name: purge
-- The seed's DeleteOldRequests, by the time it ended: pending rows are never deleted.
delete from notification.requests r
using (
    select id from notification.requests
    where ended_at < pabal.now() - make_interval(days => :days)
    order by ended_at
    limit :batch
    for update skip locked
) old
where r.id = old.id;
