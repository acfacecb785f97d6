-- name: list_entries
-- `since` is turned into an id, or a page of few rows would be looked for all the way back. Adding nothing to that id keeps
-- the planner from looking for the smallest one at the wrong end.
select l.id, l.at, l.actor, l.action, l.subject, l.details, host(l.client_ip) as client_ip, l.request_id
from pabal.audit_log l
where l.id < :before
  and l.id >= case when :since::interval is null then 0
                   else (select min(s.id + 0) from pabal.audit_log s where s.at >= pabal.now() - :since::interval) end
  and (:since::interval is null or l.at >= pabal.now() - :since::interval)
  and (:actor::text is null or l.actor = :actor)
  and (:action::text is null or starts_with(l.action, :action))
order by l.id desc
limit :limit;

-- name: list_subject_entries
-- Of one subject: the same, along the subject's own index. Both columns are compared and ordered by together, or the
-- planner would hope to come across the subject soon and read the log backwards.
select l.id, l.at, l.actor, l.action, l.subject, l.details, host(l.client_ip) as client_ip, l.request_id
from pabal.audit_log l
where l.subject is not null
  and l.subject >= :subject
  and (l.subject, l.id) < (:subject, :before)
  and (:since::interval is null or l.at >= pabal.now() - :since::interval)
  and (:actor::text is null or l.actor = :actor)
  and (:action::text is null or starts_with(l.action, :action))
order by l.subject desc, l.id desc
limit :limit;

-- name: id_bounds
-- Where in the log a time lies is asked of the time's own index, which says it at once; that is near enough to begin with.
select (select max(id) from pabal.audit_log where id < :before) as newest,
       case when :since::interval is null then (select min(id) from pabal.audit_log)
            else (select id - :slack::bigint from pabal.audit_log where at >= pabal.now() - :since::interval order by at limit 1)
       end as oldest;

-- name: scan_entries
select l.id, l.at, l.actor, l.action, l.subject, l.details, host(l.client_ip) as client_ip, l.request_id
from pabal.audit_log l
where l.id < :before
  and l.id >= :floor
  and (:since::interval is null or l.at >= pabal.now() - :since::interval)
  and (:actor::text is null or l.actor = :actor)
  and (:action::text is null or starts_with(l.action, :action))
order by l.id desc
limit :limit;

-- name: scan_subject_entries
-- Of one subject: the same, along the subject's own index. Both columns are compared and ordered by together, or the
-- planner would hope to come across the subject soon and read the log backwards.
select l.id, l.at, l.actor, l.action, l.subject, l.details, host(l.client_ip) as client_ip, l.request_id
from pabal.audit_log l
where l.subject is not null
  and (l.subject, l.id) < (:subject, :before)
  and (l.subject, l.id) >= (:subject, :floor)
  and (:since::interval is null or l.at >= pabal.now() - :since::interval)
  and (:actor::text is null or l.actor = :actor)
  and (:action::text is null or starts_with(l.action, :action))
order by l.subject desc, l.id desc
limit :limit;
