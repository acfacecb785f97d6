-- Neither plugin retries a 429, so the limit must be one that honest bots do not meet.

alter table public.accounts alter column rate_limit_per_minute set default 600;

-- Only accounts that a session created: an operator may have chosen the limit of the others.
update public.accounts set rate_limit_per_minute = 600
where openclaw_user_id like 'session:%' and rate_limit_per_minute = 60;

-- A bot that polls has no stream: its last request is known by its rate limit.
create or replace function pabal.limit_used_within(key text, span interval) returns boolean
language sql stable
set search_path = ''
as $$ select exists (select from pabal.limits l where l.key = limit_used_within.key and l.tat > pabal.now() - limit_used_within.span) $$;
comment on function pabal.limit_used_within(text, interval) is 'Whether a call was counted under this key within this time, up to a minute.';
revoke all on function pabal.limit_used_within(text, interval) from public, anon, authenticated;
grant execute on function pabal.limit_used_within(text, interval) to service_role;
