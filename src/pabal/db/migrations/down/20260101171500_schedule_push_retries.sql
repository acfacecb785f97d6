update public.event_queue set max_retries = retries_from where retries_from is not null;
alter table public.event_queue drop column if exists retries_from;
alter table pabal.subscriptions drop constraint if exists subscription_on_blocked;
alter table pabal.subscriptions drop constraint if exists subscription_retry_schedule;
alter table pabal.subscriptions drop column if exists on_blocked;
alter table pabal.subscriptions drop column if exists retry_schedule;
