drop index if exists public.idx_token_families_live;
