-- Guilds and users that existed before stay.

drop function if exists notification.request(text, text, text, jsonb, uuid, timestamptz, timestamptz, text, text, text, uuid, text);
drop function if exists notification.first_invalid_variable(jsonb, jsonb);
drop table if exists notification.toasts;
drop function if exists notification.number_toast_change();
drop function if exists notification.lock_recipient_toasts();
drop sequence if exists notification.toast_changes;
drop table if exists notification.addresses;
drop table if exists notification.person_tokens;
drop table if exists notification.people;
drop table if exists notification.preferences;
drop table if exists notification.attempts;
drop table if exists notification.requests;
drop function if exists notification.settle_request();
-- Dropping the table does not fire its triggers: the subscriptions of the rules are deleted here.
delete from pabal.subscriptions where mode = 'rule';
drop table if exists notification.rules;
drop function if exists notification.sync_rule_subscription();
drop table if exists notification.templates;

do $$
declare
  created text[] := array(select kind || ' ' || name from pabal.created_objects);
begin
  if 'table identity.users' = any(created) then
    drop table identity.users;
  end if;
  if 'schema identity' = any(created) then
    drop schema identity;
  end if;
  if 'table guild.guilds' = any(created) then
    drop table guild.guilds;
  end if;
  if 'schema guild' = any(created) then
    drop schema guild;
  end if;
  if 'usage service_role on notification' = any(created) then
    revoke usage on schema notification from service_role;
  end if;
  if 'usage pabal_publisher on notification' = any(created) then
    revoke usage on schema notification from pabal_publisher;
  end if;
  if 'schema notification' = any(created) then
    drop schema notification;
  end if;
  delete from pabal.created_objects
  where name in (
    'identity.users', 'identity', 'guild.guilds', 'guild', 'notification',
    'service_role on notification', 'pabal_publisher on notification'
  );
end
$$;
