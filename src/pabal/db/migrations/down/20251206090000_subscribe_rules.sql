drop index if exists notification.requests_source_idx;
drop trigger if exists rules_sync_subscription on notification.rules;
drop function if exists notification.sync_rule_subscription();
delete from pabal.subscriptions where mode = 'rule';
alter table notification.rules drop column if exists incident_path;
