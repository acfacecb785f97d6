-- Pushes are retried on a schedule of hours, so that a receiver may be away for a deploy or a night.

alter table pabal.subscriptions add column if not exists retry_schedule integer[];
alter table pabal.subscriptions add column if not exists on_blocked text not null default 'dead_letter';
alter table pabal.subscriptions drop constraint if exists subscription_retry_schedule;
alter table pabal.subscriptions add constraint subscription_retry_schedule check (
  cardinality(retry_schedule) between 1 and 20 and 1 <= all (retry_schedule) and 86400 >= all (retry_schedule)
);
alter table pabal.subscriptions drop constraint if exists subscription_on_blocked;
alter table pabal.subscriptions add constraint subscription_on_blocked check (on_blocked in ('hold', 'dead_letter'));
comment on column pabal.subscriptions.retry_schedule is 'Seconds before each retry of a push; NULL means the default schedule.';
comment on column pabal.subscriptions.on_blocked is 'What becomes of a failing push that holds back later events of its ordering key: hold (it is retried on schedule) or dead_letter (after ten minutes).';

alter table public.event_queue add column if not exists retries_from integer;
comment on column public.event_queue.retries_from is 'The publisher''s max_retries, while a push schedule has replaced it; NULL otherwise.';
