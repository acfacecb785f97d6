-- name: insert_rule
insert into notification.rules (
    id, name, event_pattern, template_key, recipients, channels, variables, guild_path, incident_path, expires_after,
    is_active, created_by
)
values (
    :id, :name, :event_pattern, :template_key, :recipients, :channels, :variables, :guild_path, :incident_path, :expires_after,
    :is_active, :by
)
returning id, name, event_pattern, template_key, recipients, channels, variables, guild_path, incident_path, expires_after,
          is_active, created_by, created_at, updated_at;

-- name: find_rule
select id, name, event_pattern, template_key, recipients, channels, variables, guild_path, incident_path, expires_after,
       is_active, created_by, created_at, updated_at
from notification.rules
where id = :id;

-- name: lock_rule
-- find_rule, locked for an update.
select id, name, event_pattern, template_key, recipients, channels, variables, guild_path, incident_path, expires_after,
       is_active, created_by, created_at, updated_at
from notification.rules
where id = :id
for no key update;

-- name: list_rules
select id, name, event_pattern, template_key, recipients, channels, variables, guild_path, incident_path, expires_after,
       is_active, created_by, created_at, updated_at
from notification.rules
where :after::timestamptz is null or (created_at, id) > (:after, :after_id::uuid)
order by created_at, id
limit :limit;

-- name: list_active_rules
-- Unbounded: people write rules, so there are few.
select id, name, event_pattern, template_key, recipients, channels, variables, guild_path, incident_path, expires_after,
       is_active, created_by, created_at, updated_at
from notification.rules
where is_active
order by id;

-- name: update_rule
update notification.rules
set name = :name, event_pattern = :event_pattern, template_key = :template_key, recipients = :recipients,
    channels = :channels, variables = :variables, guild_path = :guild_path, incident_path = :incident_path,
    expires_after = :expires_after, is_active = :is_active
where id = :id
returning id, name, event_pattern, template_key, recipients, channels, variables, guild_path, incident_path, expires_after,
          is_active, created_by, created_at, updated_at;

-- name: delete_rule
delete from notification.rules where id = :id;
