drop function if exists pabal.long_transactions(interval);
drop trigger if exists event_queue_attempt_start on public.event_queue;
drop function if exists pabal.record_attempt_start();

-- One subscription a service again: the program that was seen last has it.
delete from pabal.subscriptions s
using pabal.subscriptions o
where s.mode = 'handler' and o.mode = 'handler' and s.service_name = o.service_name
  and (coalesce(s.seen_at, '-infinity'), s.id) < (coalesce(o.seen_at, '-infinity'), o.id);
drop index if exists pabal.idx_subscriptions_program;
create unique index if not exists idx_subscriptions_handler on pabal.subscriptions (service_name) where mode = 'handler';

alter table pabal.subscriptions drop column if exists seen_at;
alter table pabal.subscriptions drop column if exists program;
