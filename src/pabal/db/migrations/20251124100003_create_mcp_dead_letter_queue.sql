-- Dead letters: one row for each time an event failed for good. They outlive their event.

create or replace function pabal.error_signature(code text, message text) returns text
language sql immutable parallel safe
as $$
  select concat_ws(
    ' ',
    nullif(code, ''),
    left(
      regexp_replace(
        regexp_replace(
          regexp_replace(
            regexp_replace(
              split_part(coalesce(message, ''), E'\n', 1),
              '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}', '<id>', 'gi'
            ),
            '\m(0x[0-9a-f]+|(?=[a-f]*[0-9])[0-9a-f]{8,})\M', '<hex>', 'gi'
          ),
          '[0-9]+([.,:][0-9]+)*', '<n>', 'g'
        ),
        '\s+', ' ', 'g'
      ), 200
    )
  )
$$;
comment on function pabal.error_signature(text, text) is 'Groups errors of one cause: the first line with ids, hex strings and numbers replaced.';
revoke all on function pabal.error_signature(text, text) from public, anon, authenticated;
grant execute on function pabal.error_signature(text, text) to service_role;

create table if not exists public.dead_letter_queue (
  id uuid primary key default gen_random_uuid(),
  event_id uuid references public.event_queue (id) on delete set null,
  original_event_type text not null,
  original_source_service text not null,
  original_target_service text,
  original_payload jsonb not null,
  error_message text not null,
  error_code text,
  error_stack text,
  total_retry_count integer not null default 0,
  error_history jsonb default '[]',
  resolved_at timestamptz,
  resolved_by uuid references auth.users (id) on delete set null,
  resolution_notes text,
  failed_at timestamptz not null default pabal.now(),
  created_at timestamptz not null default pabal.now(),
  original_event_id uuid not null,
  origin_id uuid not null,
  original_envelope jsonb not null default '{}',
  death integer not null,
  signature text not null generated always as (pabal.error_signature(error_code, error_message)) stored,
  resolved_by_actor text,
  replayed_at timestamptz,
  replay_count integer not null default 0,
  constraint one_dead_letter_per_failure unique (original_event_id, death),
  constraint dead_letter_replays check (replay_count >= 0 and (replay_count > 0) = (replayed_at is not null)),
  constraint dead_letter_resolver_is_resolved check (resolved_at is not null or resolved_by_actor is null)
);
comment on table public.dead_letter_queue is 'MCP Orchestrator: 실패한 이벤트 보관 (Dead Letter Queue)';
comment on column public.dead_letter_queue.id is 'DLQ 항목 고유 ID';
comment on column public.dead_letter_queue.event_id is '원본 이벤트 ID (FK)';
comment on column public.dead_letter_queue.original_event_type is '원본 이벤트 유형';
comment on column public.dead_letter_queue.original_source_service is '원본 이벤트 발생 서비스';
comment on column public.dead_letter_queue.original_target_service is '원본 이벤트 대상 서비스';
comment on column public.dead_letter_queue.original_payload is '원본 이벤트 페이로드';
comment on column public.dead_letter_queue.error_message is '최종 에러 메시지';
comment on column public.dead_letter_queue.error_code is '에러 코드';
comment on column public.dead_letter_queue.error_stack is '에러 스택 트레이스';
comment on column public.dead_letter_queue.total_retry_count is '총 재시도 횟수';
comment on column public.dead_letter_queue.error_history is '에러 이력 (JSON Array)';
comment on column public.dead_letter_queue.resolved_at is '수동 해결 시간';
comment on column public.dead_letter_queue.resolved_by is '수동 해결자 ID';
comment on column public.dead_letter_queue.resolution_notes is '해결 메모';
comment on column public.dead_letter_queue.failed_at is 'DLQ로 이동된 시간';
comment on column public.dead_letter_queue.created_at is 'When the row was created.';
comment on column public.dead_letter_queue.original_event_id is 'Id of the failed event; kept after the event is deleted.';
comment on column public.dead_letter_queue.origin_id is 'Id that consumers deduplicate by; the same through every replay.';
comment on column public.dead_letter_queue.original_envelope is 'What a replay needs besides the payload if the event was deleted: priority, max_retries, keys, trace.';
comment on column public.dead_letter_queue.death is 'Counts the failures of the event, from 1.';
comment on column public.dead_letter_queue.signature is 'Same for dead letters with the same cause; see pabal.error_signature().';
comment on column public.dead_letter_queue.resolved_by_actor is 'Who resolved it; set even if the actor has no row in auth.users.';
comment on column public.dead_letter_queue.replayed_at is 'When it was last replayed.';
comment on column public.dead_letter_queue.replay_count is 'How often it was replayed.';
