-- The error history keeps the last twenty attempts. From then on the newest entry also says when the first attempt began: a push
-- that blocks its ordering key has ten minutes, however many attempts it makes in them.

create or replace function pabal.record_attempt_start() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  new.error_history := jsonb_set(new.error_history, '{-1,began}', to_jsonb(old.processing_started_at));
  if old.retry_count >= 20 then
    new.error_history := jsonb_set(new.error_history, '{-1,first_began}', coalesce(
      old.error_history -> -1 -> 'first_began', old.error_history -> 0 -> 'began', to_jsonb(old.processing_started_at)
    ));
  end if;
  return new;
end
$$;
comment on function pabal.record_attempt_start() is 'Adds the start time of a failed attempt to its entry in the error history, and that of the first one if its entry is dropped.';
