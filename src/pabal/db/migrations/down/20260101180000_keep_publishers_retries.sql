create or replace function public.move_event_to_dlq() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  insert into public.dead_letter_queue (
    id, event_id, original_event_id, origin_id,
    original_event_type, original_source_service, original_target_service, original_payload, original_envelope,
    error_message, error_code, error_stack, total_retry_count, error_history, failed_at
  ) values (
    pabal.uuid7(), new.id, new.id, coalesce(new.origin_id, new.id),
    new.event_type, new.source_service, new.target_service, new.payload,
    jsonb_strip_nulls(jsonb_build_object(
      'priority', new.priority,
      'max_retries', new.max_retries,
      'ordering_key', new.ordering_key,
      'correlation_id', new.correlation_id,
      'traceparent', new.traceparent,
      'parent_id', new.parent_id
    )),
    coalesce(new.last_error, 'Unknown error'), new.error_code, new.error_stack,
    new.retry_count, new.error_history, pabal.now()
  );
  return new;
end
$$;
