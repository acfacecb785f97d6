-- What dispatching remembers: when a request was claimed, and when an emergency passed the storm guard.

alter table notification.requests add column if not exists claimed_at timestamptz;
comment on column notification.requests.claimed_at is 'When it was last claimed: the beginning of the attempt that is written down when it ends.';

alter table notification.requests add column if not exists guarded_at timestamptz;
comment on column notification.requests.guarded_at is 'When an emergency passed the storm guard; its retries pass without being counted again.';

-- How many emergencies a recipient had lately, and whether one of them was the same incident.
create index if not exists requests_guarded_idx on notification.requests (recipient_type, recipient_id, guarded_at)
  where guarded_at is not null;
-- Emergencies that failed: looked at every second, and few.
create index if not exists requests_undelivered_idx on notification.requests (ended_at) where state = 'failed' and priority = 1;
