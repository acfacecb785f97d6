-- The notification of an SQL publisher names the service that its transaction published to, so that only the processes that
-- consume the service wake up. Without a name if there are several services, or a broadcast.

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
    perform pg_notify('pabal', 'sql events' || case
      when current_setting('pabal.published_to', true) = '*' then ''
      else coalesce('/' || new.target_service, '')
    end);
  end if;
  return null;
end
$$;
comment on function pabal.notify_inserted_events() is 'Notifies the hub of inserted events, unless it polls at the moment.';

-- Deferred: the hub may stop polling between the insert and the commit. The hub's own connections are named pabal and notify after
-- their commit. Once per transaction, and once more for a second service: pabal.published_to is the service of the first row, then
-- '*', and ends with the transaction; a rollback to a savepoint resets it. A delivery to the hub is left out, because the worker of
-- the rules wakes up for every service. Only functions that every role may execute: the condition runs as the inserting role.
drop trigger if exists event_queue_notify_inserted on public.event_queue;
create constraint trigger event_queue_notify_inserted
  after insert on public.event_queue
  deferrable initially deferred
  for each row
  when (
    pg_catalog.current_setting('application_name') <> 'pabal'
    and coalesce(pg_catalog.current_setting('pabal.published_to', true), '') not in ('*', coalesce(new.target_service, '*'))
    and (new.parent_id is null or new.target_service is distinct from 'hub')
    and pg_catalog.set_config(
      'pabal.published_to',
      case coalesce(pg_catalog.current_setting('pabal.published_to', true), '') when '' then coalesce(new.target_service, '*') else '*' end,
      true
    ) <> ''
  )
  execute function pabal.notify_inserted_events();

comment on column pabal.event_repair_positions.name is 'The table that is read, or recent_events for the events of the last minutes.';
