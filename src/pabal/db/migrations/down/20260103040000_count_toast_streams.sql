drop table if exists notification.toast_streams;
