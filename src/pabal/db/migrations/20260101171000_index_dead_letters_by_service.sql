-- Services list their own dead letters, the newest first.

create index if not exists dead_letter_queue_target_idx
  on public.dead_letter_queue (original_target_service, failed_at desc, id desc);
create index if not exists dead_letter_queue_source_idx
  on public.dead_letter_queue (original_source_service, failed_at desc, id desc);
