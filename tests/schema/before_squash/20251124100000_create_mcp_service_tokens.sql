-- Access tokens, and the families that own them together with their refresh tokens.

create table if not exists public.token_families (
  id uuid primary key default pabal.uuid7(),
  service_name text not null,
  created_at timestamptz not null default pabal.now(),
  expires_at timestamptz not null default pabal.now() + interval '30 days',
  revoked_at timestamptz,
  revoked_reason text,
  constraint valid_service_name foreign key (service_name) references public.services (name),
  constraint family_expires_later check (expires_at > created_at)
);
comment on table public.token_families is 'Everything that came of one sign-in: its access and refresh tokens end together.';
comment on column public.token_families.id is 'The family; a claim of its access tokens.';
comment on column public.token_families.service_name is 'Whose family it is.';
comment on column public.token_families.created_at is 'When the service signed in.';
comment on column public.token_families.expires_at is 'The end that no rotation moves.';
comment on column public.token_families.revoked_at is 'When all of it was taken back.';
comment on column public.token_families.revoked_reason is 'Why.';

create table if not exists public.service_tokens (
  id uuid primary key default gen_random_uuid(),
  service_name text not null,
  access_token text not null,
  token_hash text not null,
  permissions jsonb not null default '["read"]',
  expires_at timestamptz not null,
  is_revoked boolean not null default false,
  revoked_at timestamptz,
  revoked_reason text,
  issued_by uuid references auth.users (id) on delete set null,
  client_ip inet,
  user_agent text,
  created_at timestamptz not null default pabal.now(),
  updated_at timestamptz not null default pabal.now(),
  family_id uuid not null references public.token_families (id) on delete cascade,
  issued_by_actor text,
  constraint valid_service_name foreign key (service_name) references public.services (name),
  constraint valid_expires_at check (expires_at > created_at),
  constraint token_not_empty check (length(access_token) > 0),
  constraint token_hash_not_empty check (length(token_hash) > 0),
  constraint permissions_known check (pabal.known_permissions(permissions)),
  constraint revoked_says_when check (is_revoked = (revoked_at is not null))
);
comment on table public.service_tokens is 'MCP Orchestrator: 서비스 간 인증 토큰 관리';
comment on column public.service_tokens.id is '토큰 고유 ID';
comment on column public.service_tokens.service_name is '토큰 발급 대상 서비스 (minu_find, minu_frame, minu_build, minu_keep)';
comment on column public.service_tokens.access_token is 'JWT Access Token (암호화 저장)';
comment on column public.service_tokens.token_hash is 'SHA256 해시 - 빠른 토큰 검증용';
comment on column public.service_tokens.permissions is '부여된 권한 목록 (JSON Array)';
comment on column public.service_tokens.expires_at is '토큰 만료 시간';
comment on column public.service_tokens.is_revoked is '폐기 여부';
comment on column public.service_tokens.revoked_at is '폐기 시간';
comment on column public.service_tokens.revoked_reason is '폐기 사유';
comment on column public.service_tokens.issued_by is '발급자 ID';
comment on column public.service_tokens.client_ip is '발급 요청 클라이언트 IP';
comment on column public.service_tokens.user_agent is '발급 요청 User-Agent';
comment on column public.service_tokens.created_at is 'When it was issued.';
comment on column public.service_tokens.updated_at is 'When the row last changed.';
comment on column public.service_tokens.family_id is 'The family it ends with; a plain insert founds one.';
comment on column public.service_tokens.issued_by_actor is 'Who asked for it, whether or not they have a row in auth.users.';
