-- Publishers from SQL notify at their commit only while there are few of them. NOTIFY takes a database-wide lock until the commit
-- is on disk, so that commits wait for each other. Under load the hub's processes claim every few milliseconds for a while and
-- say so here; publishers then need not notify.

-- A sequence, because its value is visible to all transactions at once and setting it locks nothing.
create sequence if not exists pabal.polling_until as bigint minvalue 0 start 0;
comment on sequence pabal.polling_until is 'Until then the hub polls for events by itself, in milliseconds since 1970; publishers need not notify.';
revoke all on sequence pabal.polling_until from public, anon, authenticated;
grant select, update on sequence pabal.polling_until to service_role;

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
revoke all on function pabal.notify_inserted_events() from public, anon, authenticated;

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

drop function if exists pabal.notify_doorbell();
