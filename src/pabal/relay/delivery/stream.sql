-- name: insert_control_event
insert into public.relay_control_events (kind, account_id, session_id, data)
values (:kind, :account, :session, :data);

-- name: list_recent_control_events
-- For every account: whoever reads keeps what concerns its own streams. Ids are drawn before the commit, so news are
-- looked back for rather than counted on from the last.
select id, kind, account_id, session_id, data
from public.relay_control_events
where created_at > pabal.now() - :back::interval
order by id;

-- name: find_seen_control_event_ids
-- What somebody who comes now need not be told: it is in how they find things.
select id
from public.relay_control_events
where created_at > pabal.now() - :back::interval and (account_id = :account or session_id = :session);

-- name: purge_control_events
-- For every account.
delete from public.relay_control_events
where id in (select id from public.relay_control_events where created_at < pabal.now() - :keep::interval limit :batch);
