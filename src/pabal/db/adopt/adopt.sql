-- name: record_adoption
insert into pabal.audit_log (actor, action, details) values (:actor, 'database.adopted', :details::jsonb);
