drop index if exists notification.toasts_arrival_idx;
create index if not exists toasts_inbox_idx on notification.toasts (recipient_id, id desc) where archived_at is null;
drop trigger if exists toasts_change on notification.toasts;
drop trigger if exists toasts_arrive on notification.toasts;
drop function if exists notification.line_up_toast();
