-- name: record_text_views
-- At most one entry per actor, conversation and hour. Limits are locked in the order of their keys.
insert into pabal.audit_log (actor, action, subject, details, client_ip, request_id)
select :actor::text, :action::text, v.subject, '{}', :client_ip::inet, :request_id::text
from (select s.subject from unnest(:subjects::text[]) as s (subject) order by s.subject) v
where pabal.take_limit('texts viewed:' || :actor::text || ' ' || v.subject, :period::interval, :period::interval, 1) = 1;
