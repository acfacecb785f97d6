-- When a consumer of a service last claimed: for the status of the hub and the trace of an event that waits.

create or replace function pabal.last_event_claim(receiver text) returns timestamptz
language sql
stable
set search_path = ''
as $$
  -- The newest events, and those published just before the first one that waits: a consumer claims the longest due first.
  select max(coalesce(e.processing_started_at, (e.error_history -> -1 ->> 'at')::timestamptz))
  from (
    (
      select e.processing_started_at, e.error_history
      from public.event_queue e
      where e.target_service = receiver
      order by e.created_at desc, e.id desc
      limit 200
    )
    union all
    (
      select e.processing_started_at, e.error_history
      from public.event_queue e
      where e.target_service = receiver
        and e.created_at <= (select min(f.due_at) from pabal.event_first_due(receiver, null) f)
      order by e.created_at desc, e.id desc
      limit 200
    )
  ) e;
$$;
comment on function pabal.last_event_claim(text) is 'When an event of a service was last claimed, as far as at most 400 of its events tell; NULL if none of them was.';
revoke all on function pabal.last_event_claim(text) from public, anon, authenticated;
grant execute on function pabal.last_event_claim(text) to service_role;
