-- Back to random ids.

alter table public.event_queue alter column id set default gen_random_uuid();
