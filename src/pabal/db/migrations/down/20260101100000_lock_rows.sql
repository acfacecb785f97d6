create or replace function notification.lock_recipient_toasts() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  perform pg_advisory_xact_lock(hashtextextended('toasts ' || new.recipient_id, 0));
  if tg_op = 'INSERT' then
    new.seq := nextval('notification.toast_changes');
  end if;
  return new;
end
$$;

alter table pabal.chores drop column if exists every;
alter table pabal.chores drop column if exists last_success_at;

drop function if exists pabal.lock_names(text, text[]);
drop table if exists pabal.row_locks;
