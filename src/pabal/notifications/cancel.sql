-- name: cancel_request
-- Not from under a holder: it may be at the receiver already, and the row would deny it.
update notification.requests r
set state = 'suppressed', reason = 'cancelled', ended_at = pabal.now(), lease = null, leased_until = null
where r.id = :id and (:all::boolean or r.source_service = :service)
  and r.state = 'pending' and (r.lease is null or r.leased_until <= pabal.now());
