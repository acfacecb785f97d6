drop index if exists notification.addresses_unhealthy_idx;
drop index if exists notification.requests_again_of_idx;
alter table notification.requests drop column if exists again_of;
