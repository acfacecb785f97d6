-- name: list_entries
-- `since` is converted to an id, or the search for a page of few rows would read the whole log. The "+ 0" prevents the
-- planner from searching the minimum in the primary key.
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
-- Uses the index of the subject. Both of its columns are compared and ordered by, or the planner would read the log
-- backwards in the hope of finding the subject soon.
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
-- The index of the time gives an approximate first id.
select (select max(id) from pabal.audit_log where id < :before) as newest,
       case when :since::interval is null then (select min(id) from pabal.audit_log)
            else (select id - :slack::bigint from pabal.audit_log where at >= pabal.now() - :since::interval order by at limit 1)
       end as oldest;

-- name: scan_entries
select l.id, l.at, l.actor, l.action, l.subject, l.details, host(l.client_ip) as client_ip, l.request_id
from pabal.audit_log l
where l.id < :before
  and l.id >= :lowest_id
  and (:since::interval is null or l.at >= pabal.now() - :since::interval)
  and (:actor::text is null or l.actor = :actor)
  and (:action::text is null or starts_with(l.action, :action))
order by l.id desc
limit :limit;

-- name: scan_subject_entries
-- Uses the index of the subject. Both of its columns are compared and ordered by, or the planner would read the log
-- backwards in the hope of finding the subject soon.
select l.id, l.at, l.actor, l.action, l.subject, l.details, host(l.client_ip) as client_ip, l.request_id
from pabal.audit_log l
where l.subject is not null
  and (l.subject, l.id) < (:subject, :before)
  and (l.subject, l.id) >= (:subject, :lowest_id)
  and (:since::interval is null or l.at >= pabal.now() - :since::interval)
  and (:actor::text is null or l.actor = :actor)
  and (:action::text is null or starts_with(l.action, :action))
order by l.subject desc, l.id desc
limit :limit;
