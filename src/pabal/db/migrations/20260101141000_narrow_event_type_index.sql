-- No statement searches events by their type alone: lists read the newest events in order and compare the type. As BRIN, the
-- specification's index remains for queries of operators and costs a publish almost nothing.

drop index if exists public.idx_event_queue_event_type;
create index idx_event_queue_event_type on public.event_queue
  using brin (event_type) with (pages_per_range = 16, autosummarize = on);
comment on index public.idx_event_queue_event_type is 'BRIN: a btree was written for every event and read by no statement.';
