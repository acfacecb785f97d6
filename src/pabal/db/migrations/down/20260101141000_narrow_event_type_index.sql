-- Back to a btree by type.

drop index if exists public.idx_event_queue_event_type;
create index idx_event_queue_event_type on public.event_queue (event_type);
