-- Takes back 20251201110500_create_notification_people.sql. Users that were found stay as they are.

drop table if exists notification.toasts;
drop function if exists notification.number_toast_change();
drop sequence if exists notification.toast_changes;
drop table if exists notification.addresses;
drop table if exists notification.person_tokens;
drop table if exists notification.people;
drop table if exists notification.preferences;

do $$
declare
  made text[] := array(select kind || ' ' || name from pabal.created_objects);
begin
  if 'table identity.users' = any(made) then
    drop table identity.users;
  end if;
  if 'schema identity' = any(made) then
    drop schema identity;
  end if;
  delete from pabal.created_objects where name in ('identity.users', 'identity');
end
$$;
