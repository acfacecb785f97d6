drop table if exists public.event_queue;
