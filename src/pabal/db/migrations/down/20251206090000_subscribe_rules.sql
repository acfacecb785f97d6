drop index if exists notification.requests_source_idx;
drop trigger if exists rules_subscribe on notification.rules;
drop function if exists notification.rule_subscribes();
delete from pabal.subscriptions where mode = 'rule';
alter table notification.rules drop column if exists incident_path;
