-- Events. A row is updated a few times in its short life and none of its btree indexes covers a column that changes, so
-- with free space in each page every update is HOT.

create table if not exists public.event_queue (
  id uuid primary key default gen_random_uuid(),
  event_type text not null,
  source_service text not null,
  target_service text,
  payload jsonb not null default '{}',
  status text not null default 'pending',
  retry_count integer not null default 0,
  max_retries integer not null default 3,
  next_retry_at timestamptz,
  processed_at timestamptz,
  processing_started_at timestamptz,
  processor_id text,
  last_error text,
  error_history jsonb default '[]',
  priority integer not null default 5,
  created_at timestamptz not null default pabal.now(),
  updated_at timestamptz not null default pabal.now(),
  seq bigint generated always as identity,
  parent_id uuid references public.event_queue (id) on delete set null,
  origin_id uuid,
  idempotency_key text,
  content_hash bytea,
  ordering_key text,
  expires_at timestamptz,
  correlation_id text,
  traceparent text,
  lease uuid,
  error_code text,
  error_stack text,
  is_broadcast boolean not null default false,
  constraint valid_source_service foreign key (source_service) references public.services (name),
  constraint valid_target_service foreign key (target_service) references public.services (name),
  constraint valid_status check (status in ('pending', 'processing', 'completed', 'failed', 'cancelled')),
  constraint valid_retry_count check (retry_count >= 0),
  constraint valid_max_retries check (max_retries >= 0),
  constraint valid_priority check (priority between 1 and 10),
  constraint event_type_form check (event_type ~ '^[a-z0-9_]+(\.[a-z0-9_]+)*$' and length(event_type) <= 128),
  constraint event_payload_is_object check (jsonb_typeof(payload) = 'object'),
  constraint event_key_form check (length(idempotency_key) between 1 and 255),
  constraint event_ended_has_time check (
    (status in ('completed', 'failed', 'cancelled')) = (processed_at is not null)
  )
) with (
  fillfactor = 50,
  -- Vacuum early: a claim has to step over every dead row version that is still there.
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_analyze_scale_factor = 0.05,
  autovacuum_vacuum_cost_delay = 1
);
comment on table public.event_queue is 'MCP Orchestrator: 비동기 이벤트 처리 큐';
comment on column public.event_queue.id is '이벤트 고유 ID';
comment on column public.event_queue.event_type is '이벤트 유형 (token.issued, service.sync, data.updated 등)';
comment on column public.event_queue.source_service is '이벤트 발생 서비스';
comment on column public.event_queue.target_service is '대상 서비스 (NULL = 브로드캐스트)';
comment on column public.event_queue.payload is '이벤트 페이로드 (JSON)';
comment on column public.event_queue.status is '처리 상태: pending, processing, completed, failed, cancelled';
comment on column public.event_queue.retry_count is '현재 재시도 횟수';
comment on column public.event_queue.max_retries is '최대 재시도 횟수 (기본 3회)';
comment on column public.event_queue.next_retry_at is '다음 재시도 예정 시간';
comment on column public.event_queue.processed_at is '처리 완료 시간';
comment on column public.event_queue.processing_started_at is '처리 시작 시간';
comment on column public.event_queue.processor_id is '처리 중인 워커 식별자';
comment on column public.event_queue.last_error is '마지막 에러 메시지';
comment on column public.event_queue.error_history is '에러 이력 (JSON Array)';
comment on column public.event_queue.priority is '우선순위 (1=최고, 10=최저, 기본 5)';
comment on column public.event_queue.created_at is 'When the event was published.';
comment on column public.event_queue.updated_at is 'When the row last changed.';
comment on column public.event_queue.seq is 'Order of publishing; events of one ordering_key are delivered in it.';
comment on column public.event_queue.parent_id is 'The broadcast that this is a delivery of.';
comment on column public.event_queue.origin_id is 'First id of an event that a replay recreated; NULL means its own id.';
comment on column public.event_queue.idempotency_key is 'Key chosen by the publisher; unique per source for as long as it is kept.';
comment on column public.event_queue.content_hash is 'Hash of the content published under the key; other content with the same key is refused.';
comment on column public.event_queue.ordering_key is 'Events with the same key and target are delivered one at a time, in order.';
comment on column public.event_queue.expires_at is 'Not delivered after this time.';
comment on column public.event_queue.correlation_id is 'Correlation id chosen by the publisher.';
comment on column public.event_queue.traceparent is 'W3C trace context.';
comment on column public.event_queue.lease is 'Fence: a settle that does not present this lease changes nothing.';
comment on column public.event_queue.error_code is 'Code of the last error; copied into the dead letter.';
comment on column public.event_queue.error_stack is 'Stack of the last error; copied into the dead letter.';
comment on column public.event_queue.is_broadcast is 'Published without a target: its deliveries are rows with this event as parent_id.';
