create or replace function pabal.record_attempt_start() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  new.error_history := jsonb_set(new.error_history, '{-1,began}', to_jsonb(old.processing_started_at));
  return new;
end
$$;
comment on function pabal.record_attempt_start() is 'Adds the start time of a failed attempt to its entry in the error history.';
