-- Refresh tokens: each is used once and names its successor.

create table if not exists public.refresh_tokens (
  id uuid primary key default gen_random_uuid(),
  service_token_id uuid not null references public.service_tokens (id) on delete cascade,
  refresh_token text not null,
  token_hash text not null,
  expires_at timestamptz not null,
  revoked_at timestamptz,
  revoked_reason text,
  last_used_at timestamptz,
  use_count integer not null default 0,
  replaced_by uuid references public.refresh_tokens (id) on delete set null,
  created_at timestamptz not null default pabal.now(),
  updated_at timestamptz not null default pabal.now(),
  family_id uuid not null references public.token_families (id) on delete cascade,
  constraint refresh_token_not_empty check (length(refresh_token) > 0),
  constraint refresh_token_hash_not_empty check (length(token_hash) > 0),
  constraint refresh_expires_later check (expires_at > created_at),
  constraint refresh_use_count check (use_count >= 0)
);
comment on table public.refresh_tokens is 'MCP Orchestrator: Refresh Token 관리 (Access Token 갱신용)';
comment on column public.refresh_tokens.id is 'Refresh Token 고유 ID';
comment on column public.refresh_tokens.service_token_id is '연결된 Service Token ID (FK)';
comment on column public.refresh_tokens.refresh_token is 'JWT Refresh Token (암호화 저장)';
comment on column public.refresh_tokens.token_hash is 'SHA256 해시 - 빠른 토큰 검증용';
comment on column public.refresh_tokens.expires_at is '만료 시간 (NULL = 무기한, 권장하지 않음)';
comment on column public.refresh_tokens.revoked_at is '폐기 시간 (NULL = 유효)';
comment on column public.refresh_tokens.revoked_reason is '폐기 사유';
comment on column public.refresh_tokens.last_used_at is '마지막 사용 시간';
comment on column public.refresh_tokens.use_count is '사용 횟수';
comment on column public.refresh_tokens.replaced_by is '토큰 로테이션 시 새 토큰 ID';
comment on column public.refresh_tokens.created_at is 'When it was issued.';
comment on column public.refresh_tokens.updated_at is 'When the row last changed.';
comment on column public.refresh_tokens.family_id is 'The family it ends with; a plain insert joins that of its access token.';
