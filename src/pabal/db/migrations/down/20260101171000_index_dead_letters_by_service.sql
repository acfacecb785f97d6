drop index if exists public.dead_letter_queue_source_idx;
drop index if exists public.dead_letter_queue_target_idx;
