-- name: insert_entry
insert into pabal.audit_log (actor, action, subject, details, client_ip, request_id)
values (:actor, :action, :subject, :details, :client_ip, :request_id);
