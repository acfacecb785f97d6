-- Handlers belong to programs; an attempt remembers when it began; who follows events knows which transactions are late.

-- Programs -------------------------------------------------------------------------------------------------------------------
-- Several programs may handle events of one service, each its own types. What a program no longer handles goes when it says
-- so at its next start; a program that is never started again is given up when nobody has seen it for long.

alter table pabal.subscriptions add column if not exists program text not null default '';
comment on column pabal.subscriptions.program is 'For handlers: the program they are of, as it was started.';
alter table pabal.subscriptions add column if not exists seen_at timestamptz;
comment on column pabal.subscriptions.seen_at is 'For handlers: when their program was last at work, to the hour.';

update pabal.subscriptions set seen_at = pabal.now() where mode = 'handler' and seen_at is null;

drop index if exists pabal.idx_subscriptions_handler;
-- What a program's code handles is one subscription a service.
create unique index if not exists idx_subscriptions_program on pabal.subscriptions (service_name, program) where mode = 'handler';

-- Attempts -------------------------------------------------------------------------------------------------------------------
-- The row says when the present attempt began, and forgets it at the next. A failed one takes it along into the history,
-- within the same write; what ends well or is put off passes by.

create or replace function pabal.attempt_began() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  new.error_history := jsonb_set(new.error_history, '{-1,began}', to_jsonb(old.processing_started_at));
  return new;
end
$$;
comment on function pabal.attempt_began() is 'Notes with a failed attempt when it began.';
revoke all on function pabal.attempt_began() from public, anon, authenticated;

drop trigger if exists event_queue_attempt_began on public.event_queue;
create trigger event_queue_attempt_began
  before update on public.event_queue
  for each row
  when (
    old.lease is not null and new.lease is null and old.processing_started_at is not null
    and new.error_history is distinct from old.error_history
  )
  execute function pabal.attempt_began();

-- Late transactions ----------------------------------------------------------------------------------------------------------
-- A row's time is its transaction's beginning. Whoever reads by time asks which transactions are open for long, and looks
-- again from there when one of them has ended. The definer's rights, because others' transactions are hidden from most.

create or replace function pabal.open_since(longer interval) returns timestamptz[]
language sql stable
security definer
set search_path = ''
as $$
  select coalesce(array_agg(a.xact_start order by a.xact_start), '{}')
  from pg_catalog.pg_stat_activity a
  where a.datname = current_database() and a.pid <> pg_backend_pid() and a.xact_start < clock_timestamp() - longer
$$;
comment on function pabal.open_since(interval) is 'When the transactions of this database began that are open for longer than this.';
revoke all on function pabal.open_since(interval) from public, anon, authenticated;
grant execute on function pabal.open_since(interval) to service_role;
