-- name: find_reply_summaries
select r.message_id, r.state, r.spent_by, r.response, r.answered_at, r.shown_at, r.error
from public.relay_replies r
where r.message_id = any(:messages::uuid[]) and (:account::uuid is null or r.account_id = :account);

-- name: list_failed_callbacks
-- For an operator. The failed have an index of their own, in which the newest stand last.
select r.id, r.message_id, r.account_id, r.conversation_key, r.spent_by, r.outcome, r.settled_at, r.status_code, r.error
from public.relay_replies r
where r.outcome in ('refused', 'unknown') and (:before::timestamptz is null or (r.settled_at, r.id) < (:before, :before_id::uuid))
order by r.settled_at desc, r.id desc
limit :limit;
