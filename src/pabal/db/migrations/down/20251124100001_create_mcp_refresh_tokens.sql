drop table if exists public.refresh_tokens;
