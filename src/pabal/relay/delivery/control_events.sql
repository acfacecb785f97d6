-- name: insert_control_event
insert into public.relay_control_events (kind, account_id, session_id, data)
values (:kind, :account, :session, :data);

-- name: list_recent_control_events
-- For all accounts: each process keeps what concerns its streams. Ids are drawn before the commit, so reading on from the
-- last id would miss events; a time window does not.
select id, kind, account_id, session_id, data
from public.relay_control_events
where created_at > pabal.now() - :window::interval
order by id;

-- name: purge_control_events
-- For all accounts.
delete from public.relay_control_events
where id in (select id from public.relay_control_events where created_at < pabal.now() - :keep::interval limit :batch);
