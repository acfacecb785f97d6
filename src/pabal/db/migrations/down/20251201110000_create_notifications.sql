-- Takes back 20251201110000_create_notifications.sql. Guilds that were found stay as they are.

drop function if exists notification.request(text, text, text, jsonb, uuid, timestamptz, timestamptz, text, text, text, uuid, text);
drop function if exists notification.first_invalid_variable(jsonb, jsonb);
drop table if exists notification.attempts;
drop table if exists notification.requests;
drop function if exists notification.settle_request();
drop table if exists notification.rules;
drop table if exists notification.templates;

do $$
declare
  made text[] := array(select kind || ' ' || name from pabal.created_objects);
begin
  if 'table guild.guilds' = any(made) then
    drop table guild.guilds;
  end if;
  if 'schema guild' = any(made) then
    drop schema guild;
  end if;
  if 'usage service_role on notification' = any(made) then
    revoke usage on schema notification from service_role;
  end if;
  if 'usage pabal_publisher on notification' = any(made) then
    revoke usage on schema notification from pabal_publisher;
  end if;
  if 'schema notification' = any(made) then
    drop schema notification;
  end if;
  delete from pabal.created_objects
  where name in ('guild.guilds', 'guild', 'notification', 'service_role on notification', 'pabal_publisher on notification');
end
$$;
