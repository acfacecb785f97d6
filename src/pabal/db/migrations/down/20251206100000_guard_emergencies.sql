drop index if exists notification.requests_undelivered_idx;
drop index if exists notification.requests_guarded_idx;
alter table notification.requests drop column if exists guarded_at;
alter table notification.requests drop column if exists claimed_at;
