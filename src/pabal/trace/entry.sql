-- name: list_audited_actions
select a.at, a.actor, a.action, a.subject, a.details
from pabal.audit_log a
where a.subject = any(:subjects::text[])
order by a.id;

-- name: database_time
select pabal.now();
