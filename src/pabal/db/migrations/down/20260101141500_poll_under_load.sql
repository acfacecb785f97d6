-- Back to a notification for every inserting statement.

create or replace function pabal.notify_doorbell() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  perform pg_catalog.pg_notify('pabal', 'sql ' || tg_argv[0]);
  return null;
end
$$;
comment on function pabal.notify_doorbell() is 'Notifies the doorbell channel given as argument.';
revoke all on function pabal.notify_doorbell() from public, anon, authenticated;

drop trigger if exists event_queue_notify_inserted on public.event_queue;
create trigger event_queue_notify_inserted
  after insert on public.event_queue
  for each statement
  when (pg_catalog.current_setting('application_name') <> 'pabal')
  execute function pabal.notify_doorbell('events');

drop function if exists pabal.notify_inserted_events();
drop sequence if exists pabal.polling_until;
