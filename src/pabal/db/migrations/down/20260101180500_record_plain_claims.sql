drop trigger if exists event_queue_record_inserted_claim on public.event_queue;
drop trigger if exists event_queue_record_plain_claim on public.event_queue;
drop function if exists pabal.record_plain_claim();
drop table if exists pabal.event_plain_claims;
