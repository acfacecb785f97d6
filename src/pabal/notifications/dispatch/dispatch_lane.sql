-- name: settle_suppressed
-- Nothing was sent, so the attempt is not counted.
with ended as (
    update notification.requests r
    set state = 'suppressed', reason = a.reason, decision = r.decision || to_jsonb(string_to_array(a.steps, ' ')), ended_at = pabal.now(),
        attempt_count = greatest(r.attempt_count - 1, 0), lease = null, leased_until = null
    from (
        select a.* from unnest(:ids::uuid[], :leases::uuid[], :reasons::text[], :steps::text[]) as a (id, lease, reason, steps)
        join notification.requests r on r.id = a.id and r.lease = a.lease
        order by a.id
        for no key update of r
    ) a
    where r.id = a.id
    returning r.id, a.lease, r.attempt_count, r.held_by, r.claimed_at, a.reason
),
attempt as (
    insert into notification.attempts (request_id, lease, attempt, worker, started_at, outcome, why)
    select id, lease, attempt_count, held_by, coalesce(claimed_at, pabal.now()), 'suppressed', reason
    from ended
)
select id from ended;
