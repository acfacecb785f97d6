-- Publishers from SQL notify at their commit only while there are few of them. NOTIFY takes a database-wide lock until the commit
-- is on disk, so that commits wait for each other. Under load the hub's processes claim every few milliseconds for a while and
-- say so here; publishers then need not notify.

-- A sequence, because its value is visible to all transactions at once and setting it locks nothing.
create sequence if not exists pabal.polling_until as bigint minvalue 0 start 0;
comment on sequence pabal.polling_until is 'Until then the hub polls for events by itself, in milliseconds since 1970; publishers need not notify.';
revoke all on sequence pabal.polling_until from public, anon, authenticated;
grant select, update on sequence pabal.polling_until to service_role;

-- Asked for each row when it is inserted. The setting ends with the transaction, and a rollback to a savepoint resets it.
create or replace function pabal.is_first_publish() returns boolean
language plpgsql volatile
set search_path = ''
as $$
begin
  if current_setting('pabal.is_publishing', true) = 'on' then
    return false;
  end if;
  perform set_config('pabal.is_publishing', 'on', true);
  return true;
end
$$;
comment on function pabal.is_first_publish() is 'Whether this transaction publishes for the first time: true once.';
revoke all on function pabal.is_first_publish() from public, anon, authenticated;
grant execute on function pabal.is_first_publish() to service_role;

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

-- Deferred: the hub may stop polling between the insert and the commit. Once per transaction. The hub's own connections are named
-- pabal and notify after their commit.
drop trigger if exists event_queue_notify_inserted on public.event_queue;
create constraint trigger event_queue_notify_inserted
  after insert on public.event_queue
  deferrable initially deferred
  for each row
  when (pg_catalog.current_setting('application_name') <> 'pabal' and pabal.is_first_publish())
  execute function pabal.notify_inserted_events();

drop function if exists pabal.notify_doorbell();
