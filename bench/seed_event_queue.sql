-- The event_queue of the specification: its columns, checks, nine indexes and updated_at trigger.
drop schema if exists seed cascade;
create schema seed;
create table seed.event_queue (
  id uuid primary key default gen_random_uuid(),
  event_type text not null,
  source_service text not null,
  target_service text,
  payload jsonb not null default '{}',
  status text not null default 'pending',
  retry_count integer not null default 0,
  max_retries integer not null default 3,
  next_retry_at timestamptz,
  processed_at timestamptz,
  processing_started_at timestamptz,
  processor_id text,
  last_error text,
  error_history jsonb default '[]',
  priority integer not null default 5,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  constraint valid_source_service check (source_service in ('minu_find', 'minu_frame', 'minu_build', 'minu_keep', 'hub')),
  constraint valid_target_service check (
    target_service is null or target_service in ('minu_find', 'minu_frame', 'minu_build', 'minu_keep', 'hub')
  ),
  constraint valid_status check (status in ('pending', 'processing', 'completed', 'failed', 'cancelled')),
  constraint valid_retry_count check (retry_count >= 0),
  constraint valid_max_retries check (max_retries >= 0),
  constraint valid_priority check (priority between 1 and 10)
);
create index on seed.event_queue (priority, created_at) where status = 'pending';
create index on seed.event_queue (next_retry_at) where status = 'pending' and retry_count > 0;
create index on seed.event_queue (event_type);
create index on seed.event_queue (source_service);
create index on seed.event_queue (target_service) where target_service is not null;
create index on seed.event_queue (status);
create index on seed.event_queue (processing_started_at) where status = 'processing';
create index on seed.event_queue (created_at desc);
create index on seed.event_queue (processed_at) where status in ('completed', 'failed');
create trigger update_event_queue_updated_at
  before update on seed.event_queue
  for each row execute function public.update_updated_at_column();
