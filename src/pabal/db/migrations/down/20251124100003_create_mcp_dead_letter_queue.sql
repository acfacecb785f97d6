drop table if exists public.dead_letter_queue;
drop function if exists pabal.error_signature(text, text);
