-- Back to notifications without the name of the service.

create or replace function pabal.notify_inserted_events() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
declare
  remaining bigint := (select s.last_value from pabal.polling_until s) - (extract(epoch from clock_timestamp()) * 1000)::bigint;
begin
  -- The hub polls for two seconds at a time. A minute ahead is no time of the hub: the server's clock was set back.
  if remaining not between 1 and 60000 then
    perform pg_notify('pabal', 'sql events');
  end if;
  return null;
end
$$;
comment on function pabal.notify_inserted_events() is 'Notifies the hub of inserted events, unless it polls at the moment.';

-- Deferred: the hub may stop polling between the insert and the commit. The hub's own connections are named pabal and notify after
-- their commit. Once per transaction: the first row sets pabal.is_publishing, which ends with the transaction; a rollback to a
-- savepoint resets it. Only functions that every role may execute: the condition runs as the inserting role.
drop trigger if exists event_queue_notify_inserted on public.event_queue;
create constraint trigger event_queue_notify_inserted
  after insert on public.event_queue
  deferrable initially deferred
  for each row
  when (
    pg_catalog.current_setting('application_name') <> 'pabal'
    and pg_catalog.current_setting('pabal.is_publishing', true) is distinct from 'on'
    and pg_catalog.set_config('pabal.is_publishing', 'on', true) = 'on'
  )
  execute function pabal.notify_inserted_events();

comment on column pabal.event_repair_positions.name is 'The table that is read.';
delete from pabal.event_repair_positions where name = 'recent_events';
