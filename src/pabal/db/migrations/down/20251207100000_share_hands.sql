drop index if exists notification.requests_alert_recipient_idx;
create index if not exists requests_undelivered_idx on notification.requests (ended_at) where state = 'failed' and priority = 1;
drop index if exists notification.requests_unraised_idx;
drop index if exists notification.requests_waiting_emergencies_idx;
drop index if exists notification.requests_correlation_idx;
drop index if exists notification.requests_unsent_idx;
create index if not exists requests_due_idx on notification.requests (priority, scheduled_at) where state = 'pending';
drop index if exists notification.requests_channel_due_idx;
