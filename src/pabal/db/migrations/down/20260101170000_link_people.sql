drop table if exists notification.link_requests;
drop table if exists notification.service_links;
delete from notification.person_tokens where user_id is not null;
drop index if exists notification.person_tokens_user_idx;
alter table notification.person_tokens drop column if exists user_id;
alter table notification.people drop column if exists linked_by;
alter table notification.people drop column if exists linked_at;
