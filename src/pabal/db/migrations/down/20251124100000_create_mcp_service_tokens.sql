drop table if exists public.service_tokens;
drop table if exists public.token_families;
