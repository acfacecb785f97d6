-- Neither plugin retries a 429, so the limit must be one that honest bots do not meet.

alter table public.accounts alter column rate_limit_per_minute set default 600;

-- Only accounts that a session created: an operator may have chosen the limit of the others.
update public.accounts set rate_limit_per_minute = 600
where openclaw_user_id like 'session:%' and rate_limit_per_minute = 60;
