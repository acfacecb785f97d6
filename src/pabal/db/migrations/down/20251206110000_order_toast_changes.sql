drop index if exists notification.toasts_arrival_idx;
create index if not exists toasts_inbox_idx on notification.toasts (recipient_id, id desc) where archived_at is null;
drop trigger if exists toasts_lock_update on notification.toasts;
drop trigger if exists toasts_lock_insert on notification.toasts;
drop function if exists notification.lock_recipient_toasts();
