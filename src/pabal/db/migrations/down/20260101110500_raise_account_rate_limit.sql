drop function if exists pabal.limit_used_within(text, interval);

-- The accounts keep their limits: which of them were raised is not known.
alter table public.accounts alter column rate_limit_per_minute set default 60;
